#include <stdio.h>

#include <narrow/c.h>

int main(void) {
  const float values[4] = {1.0f, -2.0f, 3.0f, 0.25f};
  const int64_t shape[2] = {2, 2};
  narrow_tensor* x = NULL;
  narrow_quantized* q = NULL;
  const int ok =
      narrow_tensor_create("F32", shape, 2, values, sizeof values, &x) == NARROW_OK && narrow_quantize(x, "fp6_e3m2:row", &q) == NARROW_OK;
  printf("C consumer: narrow %s, %s\n", narrow_version(), ok ? narrow_quantized_scheme(q) : narrow_last_error());
  narrow_quantized_free(q);
  narrow_tensor_free(x);
  return ok ? 0 : 1;
}
