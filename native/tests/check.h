// The whole test harness: a check that says where it failed, and a count at the end.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace stepfuse::test {

inline int checks = 0;
inline int failures = 0;

inline void check(bool ok, const char* what, const char* file, int line) {
  ++checks;
  if (ok) return;
  ++failures;
  std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, what);
}

inline int report() {
  std::printf("%d passed, %d failed\n", checks - failures, failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace stepfuse::test

#define CHECK(condition) ::stepfuse::test::check((condition), #condition, __FILE__, __LINE__)
