/* A consumer of the minimal library: a product of int8 and of int4 weights with int8 activations, beside the same sums done here. */
#include <math.h>
#include <stdio.h>

#include <narrow/c.h>

enum { rows = 3, outputs = 70, depth = 256 };

static float value(int i) { return sinf(0.37f * (float)i) + (i % 11 == 0 ? 1.5f : 0.0f); }

static int check(const char* scheme, double bound) {
  static float x[rows * depth], w[outputs * depth];
  for (int i = 0; i < rows * depth; ++i) x[i] = value(i);
  for (int i = 0; i < outputs * depth; ++i) w[i] = value(3 * i + 1);
  const int64_t x_shape[2] = {rows, depth}, w_shape[2] = {outputs, depth};
  narrow_tensor *xt = NULL, *wt = NULL, *y = NULL;
  narrow_quantized* q = NULL;
  narrow_weight* weight = NULL;
  const int ok = narrow_tensor_create("F32", x_shape, 2, x, sizeof x, &xt) == NARROW_OK && narrow_tensor_create("F32", w_shape, 2, w, sizeof w, &wt) == NARROW_OK &&
                 narrow_quantize(wt, scheme, &q) == NARROW_OK && narrow_prepare(q, &weight) == NARROW_OK &&
                 narrow_matmul(xt, weight, NULL, "int8:row", "F32", &y) == NARROW_OK;
  double noise = 0.0, signal = 0.0;
  for (int m = 0; ok && m < rows; ++m)
    for (int n = 0; n < outputs; ++n) {
      double sum = 0.0;
      for (int k = 0; k < depth; ++k) sum += (double)x[m * depth + k] * w[n * depth + k];
      const double got = ((const float*)narrow_tensor_data(y))[m * outputs + n];
      noise += (sum - got) * (sum - got);
      signal += sum * sum;
    }
  const double relative = sqrt(noise / signal);
  printf("%s: %s, relative error %.4f\n", scheme, ok ? "product" : narrow_last_error(), relative);
  narrow_tensor_free(y);
  narrow_weight_free(weight);
  narrow_quantized_free(q);
  narrow_tensor_free(wt);
  narrow_tensor_free(xt);
  return ok && relative > 0.0 && relative < bound;
}

int main(void) { return check("int8:row", 0.02) && check("int4:block128", 0.2) && check("nvfp4", 0.2) ? 0 : 1; }
