# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# The options of the scripts of this folder, which source it and have a
# function `usage`.

# take_options NAMES SWITCHES ARGUMENT...: every --name VALUE among the arguments
# becomes the variable `name`, every --switch sets `switch` to 1, with
# underscores for dashes. Where NAMES ends with --, what follows that argument
# becomes the array `rest`. -h and --help print the usage; so does anything else,
# as an error.
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
