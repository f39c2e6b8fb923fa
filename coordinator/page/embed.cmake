# Writes a C++ source with the files of the page as string literals:
#   cmake -DFOLDER=coordinator/page -DOUT=page_files.cc -P embed.cmake
set(source "// Generated from coordinator/page. SPDX-License-Identifier: Apache-2.0\n")
string(APPEND source "#include \"coordinator/page/page.h\"\n\n")
string(APPEND source "namespace ringfleet::coordinator {\n\n")
foreach(name index.html style.css app.js)
  file(READ "${FOLDER}/${name}" text)
  string(REGEX REPLACE "[^a-z]" "_" id "${name}")
  string(APPEND source "const absl::string_view kPage_${id} = R\"__page__(${text})__page__\";\n\n")
endforeach()
string(APPEND source "}  // namespace ringfleet::coordinator\n")
file(WRITE "${OUT}" "${source}")
