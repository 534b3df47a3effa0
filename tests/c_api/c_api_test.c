/* The C interface as a C11 program sees it: every function, wrong uses, and the sentences they leave. Argument: a folder to work in. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "narrow/c.h"

static int failures = 0;

static void check(int holds, const char* what, int line) {
  if (holds) return;
  fprintf(stderr, "line %d: %s (last error: %s)\n", line, what, narrow_last_error());
  ++failures;
}
#define CHECK(condition) check((condition), #condition, __LINE__)

static void test_formats(void) {
  uint32_t code = 0;
  float value = 0.0f;
  int32_t bits = 0;
  char text[32];
  uint64_t bytes = 0;
  const int64_t shape[2] = {4, 64};
  CHECK(narrow_encode("fp8_e4m3", 448.0f, &code) == NARROW_OK && code == 0x7E);
  CHECK(narrow_decode("fp8_e4m3", code, &value) == NARROW_OK && value == 448.0f);
  CHECK(narrow_decode("fp4_e2m1", 16, &value) == NARROW_INVALID_ARGUMENT);
  CHECK(narrow_format_bits("fp6_e3m2", &bits) == NARROW_OK && bits == 6);
  CHECK(narrow_format_bits("fp6_e9m9", &bits) == NARROW_INVALID_ARGUMENT && strstr(narrow_last_error(), "fp6_e9m9") != NULL);
  CHECK(narrow_encode(NULL, 1.0f, &code) == NARROW_INVALID_ARGUMENT && strstr(narrow_last_error(), "NULL") != NULL);
  CHECK(narrow_encode("int8", 1.0f, NULL) == NARROW_INVALID_ARGUMENT);
  CHECK(narrow_scheme_text("int4:block128:asym", text, sizeof text) == NARROW_OK && strcmp(text, "int4:block128:asym") == 0);
  CHECK(narrow_scheme_text("int4:block128:asym", text, 5) == NARROW_INVALID_ARGUMENT);
  CHECK(narrow_scheme_text("int4:blob", text, sizeof text) == NARROW_INVALID_ARGUMENT);
  CHECK(narrow_scheme_bytes("int8:row", shape, 2, &bytes) == NARROW_OK && bytes == 4 * 64 + 4 * 4);
  CHECK(narrow_scheme_bytes("int8:row", shape, -1, &bytes) == NARROW_INVALID_ARGUMENT);
  CHECK(narrow_scheme_bytes("int8:row", NULL, 2, &bytes) == NARROW_INVALID_ARGUMENT);
  CHECK(strlen(narrow_version()) >= 5 && narrow_c_version() >= 100);
}

/* A tensor [rows, cols] of small numbers. */
static narrow_tensor* make_tensor(int64_t rows, int64_t cols) {
  const int64_t shape[2] = {rows, cols};
  const size_t count = (size_t)(rows * cols);
  narrow_tensor* tensor = NULL;
  float* values = malloc(count * sizeof *values);
  if (values == NULL) return NULL;
  for (size_t i = 0; i < count; ++i) values[i] = (float)((int)(i * 7 % 31) - 15) / 8.0f;
  CHECK(narrow_tensor_create("F32", shape, 2, values, count * sizeof *values, &tensor) == NARROW_OK);
  free(values);
  return tensor;
}

static void test_tensors(void) {
  narrow_tensor *x = make_tensor(8, 64), *y = NULL, *bad = NULL;
  narrow_quantized *q = NULL, *again = NULL;
  const int64_t shape[2] = {8, 64}, huge[2] = {INT64_MAX, INT64_MAX}, negative[1] = {-1};
  size_t codes_bytes = 0, scales_bytes = 0, zeros_bytes = 0;
  CHECK(narrow_tensor_rank(x) == 2 && narrow_tensor_shape(x)[1] == 64 && narrow_tensor_bytes(x) == 2048);
  CHECK(strcmp(narrow_tensor_dtype(x), "F32") == 0);
  CHECK(narrow_tensor_create("F32", shape, 2, x, 7, &bad) == NARROW_INVALID_ARGUMENT && bad == NULL);
  CHECK(narrow_tensor_create("F99", shape, 2, NULL, 0, &bad) == NARROW_INVALID_ARGUMENT);
  CHECK(narrow_tensor_create("F32", huge, 2, NULL, 0, &bad) != NARROW_OK && bad == NULL);
  CHECK(narrow_tensor_create("F32", negative, 1, NULL, 0, &bad) == NARROW_INVALID_ARGUMENT);
  CHECK(narrow_tensor_create("F32", shape, 2, NULL, 0, NULL) == NARROW_INVALID_ARGUMENT);

  CHECK(narrow_quantize(x, "int4:block32:asym", &q) == NARROW_OK);
  CHECK(strcmp(narrow_quantized_scheme(q), "int4:block32:asym") == 0 && narrow_quantized_rank(q) == 2 && narrow_quantized_shape(q)[0] == 8);
  const void* codes = narrow_quantized_codes(q, &codes_bytes);
  const void* scales = narrow_quantized_scales(q, &scales_bytes);
  const void* zeros = narrow_quantized_zero_points(q, &zeros_bytes);
  CHECK(codes_bytes == 8 * 32 && scales_bytes == 8 * 2 * 4 && zeros_bytes == 8 * 2);
  CHECK(narrow_assemble("int4:block32:asym", shape, 2, codes, codes_bytes, scales, scales_bytes, zeros, zeros_bytes,
                        narrow_quantized_outer_scale(q), &again) == NARROW_OK);
  CHECK(memcmp(narrow_quantized_codes(again, NULL), codes, codes_bytes) == 0);
  narrow_quantized_free(again);
  CHECK(narrow_assemble("int4:block32:asym", shape, 2, codes, codes_bytes - 1, scales, scales_bytes, zeros, zeros_bytes, 1.0f, &again) ==
            NARROW_INVALID_ARGUMENT &&
        again == NULL);
  CHECK(narrow_dequantize(q, "F32", &y) == NARROW_OK);
  for (size_t i = 0; i < 512; ++i) CHECK(fabsf(((const float*)narrow_tensor_data(y))[i] - ((const float*)narrow_tensor_data(x))[i]) < 0.2f);
  CHECK(narrow_dequantize(q, "I8", &bad) == NARROW_INVALID_ARGUMENT && bad == NULL);
  CHECK(narrow_quantize(NULL, "int8:row", &again) == NARROW_INVALID_ARGUMENT && again == NULL);
  CHECK(narrow_quantize(x, "nonsense", &again) == NARROW_INVALID_ARGUMENT);
  narrow_tensor_free(y);
  narrow_tensor_free(x);
  narrow_quantized_free(q);
  narrow_tensor_free(NULL);
  narrow_quantized_free(NULL);
}

static void test_products(void) {
  narrow_tensor *x = make_tensor(3, 64), *w = make_tensor(16, 64), *bias = NULL, *y = NULL, *rounded = NULL, *bad = NULL,
                *other = make_tensor(2, 63);
  const int64_t n[1] = {16};
  narrow_quantized* q = NULL;
  narrow_weight *weight = NULL, *dense = NULL;
  CHECK(narrow_tensor_create("F32", n, 1, NULL, 0, &bias) == NARROW_OK);
  CHECK(narrow_quantize(w, "int8:row", &q) == NARROW_OK && narrow_prepare(q, &weight) == NARROW_OK);
  CHECK(narrow_prepare_dense(w, &dense) == NARROW_OK);
  CHECK(narrow_matmul(x, weight, bias, NULL, "F32", &y) == NARROW_OK);
  CHECK(narrow_matmul(x, weight, NULL, "int8:row", "F32", &rounded) == NARROW_OK);
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 16; ++j) {
      double exact = 0.0;
      for (int k = 0; k < 64; ++k)
        exact += (double)((const float*)narrow_tensor_data(x))[i * 64 + k] * ((const float*)narrow_tensor_data(w))[j * 64 + k];
      CHECK(fabs(((const float*)narrow_tensor_data(y))[i * 16 + j] - exact) < 1.0);
      CHECK(fabs(((const float*)narrow_tensor_data(rounded))[i * 16 + j] - exact) < 2.0);
    }
  narrow_tensor_free(y);
  CHECK(narrow_matmul(x, dense, NULL, NULL, "BF16", &y) == NARROW_OK && narrow_tensor_bytes(y) == 3 * 16 * 2);
  CHECK(narrow_matmul(other, weight, NULL, NULL, "F32", &bad) == NARROW_INVALID_ARGUMENT && bad == NULL);
  CHECK(narrow_matmul(x, NULL, NULL, NULL, "F32", &bad) == NARROW_INVALID_ARGUMENT);
  CHECK(narrow_matmul(x, weight, NULL, NULL, "I8", &bad) == NARROW_INVALID_ARGUMENT);
  narrow_tensor_free(x);
  narrow_tensor_free(w);
  narrow_tensor_free(other);
  narrow_tensor_free(bias);
  narrow_tensor_free(y);
  narrow_tensor_free(rounded);
  narrow_quantized_free(q);
  narrow_weight_free(weight);
  narrow_weight_free(dense);
}

static int count_calls(const char* tensor, uint64_t done, uint64_t total, void* user) {
  CHECK(tensor[0] != '\0' && done <= total);
  ++*(int*)user;
  return 0;
}
static int stop_at_once(const char* tensor, uint64_t done, uint64_t total, void* user) {
  (void)tensor, (void)done, (void)total, (void)user;
  return 1;
}

static void test_checkpoints(const char* folder, const char* model) {
  char output[4096], plain[4096];
  int calls = 0;
  narrow_checkpoint* checkpoint = NULL;
  narrow_tensor* tensor = NULL;
  narrow_quantized* quantized = NULL;
  snprintf(output, sizeof output, "%s/quantized", folder);
  snprintf(plain, sizeof plain, "%s/plain", folder);
  const char* ignored[2] = {"lm_head", "q_proj"};
  CHECK(narrow_checkpoint_quantize(model, output, "int8:row", NULL, 0, stop_at_once, NULL) == NARROW_CANCELLED);
  CHECK(narrow_checkpoint_open(output, &checkpoint) == NARROW_IO_ERROR && checkpoint == NULL);
  CHECK(narrow_checkpoint_quantize(model, output, "int4:block128", ignored, 2, count_calls, &calls) == NARROW_OK && calls > 0);
  CHECK(narrow_checkpoint_quantize(model, output, "int4:block128", NULL, 0, NULL, NULL) == NARROW_INVALID_ARGUMENT);
  CHECK(narrow_checkpoint_verify(output) == NARROW_OK);
  CHECK(narrow_checkpoint_open(output, &checkpoint) == NARROW_OK);
  CHECK(narrow_checkpoint_count(checkpoint) > 10 && narrow_checkpoint_name(checkpoint, -1) == NULL &&
        narrow_checkpoint_name(checkpoint, narrow_checkpoint_count(checkpoint)) == NULL);
  const char* name = "model.layers.0.mlp.up_proj.weight";
  CHECK(narrow_checkpoint_is_quantized(checkpoint, name) == 1 && narrow_checkpoint_is_quantized(checkpoint, "nothing") == 0);
  CHECK(narrow_checkpoint_is_quantized(checkpoint, "model.layers.0.self_attn.q_proj.weight") == 0);
  CHECK(narrow_checkpoint_tensor(checkpoint, name, &tensor) == NARROW_OK && narrow_tensor_rank(tensor) == 2);
  CHECK(narrow_checkpoint_quantized(checkpoint, name, &quantized) == NARROW_OK);
  CHECK(strcmp(narrow_quantized_scheme(quantized), "int4:block128") == 0);
  narrow_tensor_free(tensor);
  CHECK(narrow_checkpoint_tensor(checkpoint, "nothing", &tensor) == NARROW_INVALID_ARGUMENT && tensor == NULL);
  CHECK(narrow_checkpoint_dequantize(output, plain, "BF16", NULL, NULL) == NARROW_OK && narrow_checkpoint_verify(plain) == NARROW_OK);
  CHECK(narrow_checkpoint_verify("/nowhere/at/all") != NARROW_OK);
  narrow_quantized_free(quantized);
  narrow_checkpoint_free(checkpoint);
}

int main(int count, char** words) {
  if (count != 3) return 2;
  CHECK(strcmp(narrow_last_error(), "") == 0);
  test_formats();
  test_tensors();
  test_products();
  test_checkpoints(words[1], words[2]);
  printf("c_api: %d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
