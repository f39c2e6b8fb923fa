# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Parses the options of the scripts of this folder. A script sources this file
# and defines a function `usage`.

# take_options NAMES SWITCHES ARGUMENT...
# Sets the variable `name` for every --name VALUE among the arguments, and
# `switch` to 1 for every --switch, with underscores for dashes. If NAMES ends
# with --, the arguments after -- become the array `rest`. -h and --help print the
# usage; any other argument is an error.
take_options() {
  local names=" $1 " switches=" $2 " option
  shift 2
  rest=()
  while (($# > 0)); do
    option=${1#--}
    if [[ $1 == -h || $1 == --help ]]; then
      usage
      exit 0
    elif [[ $1 == -- && $names == *" -- "* ]]; then
      rest=("${@:2}")
      return
    elif [[ $1 == --?* && $names == *" $option "* ]]; then
      printf -v "${option//-/_}" %s "${2:?$1 needs a value}"
      shift 2
    elif [[ $1 == --?* && $switches == *" $option "* ]]; then
      printf -v "${option//-/_}" 1
      shift
    else
      usage >&2
      exit 2
    fi
  done
}
