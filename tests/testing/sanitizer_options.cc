// SPDX-License-Identifier: Apache-2.0
// Part of test programs that ask for more memory than there is: sanitizers end
// the process by default where malloc returns null.
extern "C" {

const char* __asan_default_options();
const char* __tsan_default_options();

const char* __asan_default_options() { return "allocator_may_return_null=1"; }
const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

}  // extern "C"
