/* narrow in plain C, for other languages to bind: formats, schemes, quantize, dequantize, products, checkpoints.
 *
 * Every function that can fail returns a narrow_status; narrow_last_error() is then one sentence about it, of this thread.
 * No exception leaves these functions. Objects are opaque and belong to the caller, who gives each to its own *_free (NULL is
 * allowed). Where a function fails, its results are NULL or unchanged. Objects are immutable: threads may share them.
 *
 * Types of elements are safetensors' names ("F32", "F16", "BF16", "I8", ...), schemes are narrow's ("int8:row", "nvfp4", ...).
 * Texts are UTF-8 and end with a NUL. Pointers into an object live as long as it does.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum narrow_status { /* what a call answers; narrow_last_error() has the sentence */
                             NARROW_OK = 0,
                             NARROW_INVALID_ARGUMENT = 1, /* the arguments contradict each other or the contract */
                             NARROW_UNSUPPORTED = 2,      /* meaningful, but not in this build or on this machine */
                             NARROW_IO_ERROR = 3,         /* the operating system refused to read or write */
                             NARROW_CORRUPT_FILE = 4,     /* a file is not what it claims to be */
                             NARROW_CUDA_ERROR = 5,
                             NARROW_OUT_OF_MEMORY = 6,
                             NARROW_CANCELLED = 7, /* a callback asked to end */
                             NARROW_INTERNAL = 8   /* an error in narrow itself */
} narrow_status;

/* The sentence of the last failure in this thread; "" before the first. Lives until the next failure. */
const char* narrow_last_error(void);
/* "0.1.0"; and the version of this interface, which grows when functions are added and changes its hundreds when one changes. */
const char* narrow_version(void);
int32_t narrow_c_version(void);

/* ---- formats and schemes ---- */

/* One number: to the nearest code of a format ("fp8_e4m3", "int4", any fpN_eEmM), ties to even, saturating; and back. */
narrow_status narrow_encode(const char* format, float value, uint32_t* code);
narrow_status narrow_decode(const char* format, uint32_t code, float* value);
/* Bits of a code of a format. */
narrow_status narrow_format_bits(const char* format, int32_t* bits);

/* Writes the canonical text of a scheme into text, `size` bytes with the NUL; NARROW_INVALID_ARGUMENT where it is no scheme or does not
 * fit. */
narrow_status narrow_scheme_text(const char* scheme, char* text, size_t size);
/* Bytes that a tensor of this shape takes in a scheme: codes, scales, zero points, outer scale. */
narrow_status narrow_scheme_bytes(const char* scheme, const int64_t* shape, int32_t rank, uint64_t* bytes);

/* ---- tensors ---- */

typedef struct narrow_tensor narrow_tensor; /* values of one type, contiguous */

/* A contiguous tensor: a copy of `data`, or zeros where data is NULL. `bytes` is the size of data, and checked. */
narrow_status narrow_tensor_create(const char* dtype, const int64_t* shape, int32_t rank, const void* data, size_t bytes,
                                   narrow_tensor** tensor);
const char* narrow_tensor_dtype(const narrow_tensor* tensor);
int32_t narrow_tensor_rank(const narrow_tensor* tensor);
const int64_t* narrow_tensor_shape(const narrow_tensor* tensor);
const void* narrow_tensor_data(const narrow_tensor* tensor);
size_t narrow_tensor_bytes(const narrow_tensor* tensor);
void narrow_tensor_free(narrow_tensor* tensor);

/* ---- quantized tensors ---- */

typedef struct narrow_quantized narrow_quantized; /* codes, scales and zero points of a scheme */

/* x: F32, F16 or BF16. Values that are not finite are NARROW_INVALID_ARGUMENT. */
narrow_status narrow_quantize(const narrow_tensor* x, const char* scheme, narrow_quantized** quantized);
narrow_status narrow_dequantize(const narrow_quantized* quantized, const char* dtype, narrow_tensor** tensor);
/* From its parts, copied and checked; zero_points may be NULL (0 bytes) where the scheme is symmetric. */
narrow_status narrow_assemble(const char* scheme, const int64_t* shape, int32_t rank, const void* codes, size_t codes_bytes,
                              const void* scales, size_t scales_bytes, const void* zero_points, size_t zero_points_bytes, float outer_scale,
                              narrow_quantized** quantized);
const char* narrow_quantized_scheme(const narrow_quantized* quantized);
int32_t narrow_quantized_rank(const narrow_quantized* quantized);
const int64_t* narrow_quantized_shape(const narrow_quantized* quantized);
const void* narrow_quantized_codes(const narrow_quantized* quantized, size_t* bytes);
const void* narrow_quantized_scales(const narrow_quantized* quantized, size_t* bytes);
const void* narrow_quantized_zero_points(const narrow_quantized* quantized, size_t* bytes);
float narrow_quantized_outer_scale(const narrow_quantized* quantized);
void narrow_quantized_free(narrow_quantized* quantized);

/* ---- products ---- */

typedef struct narrow_weight narrow_weight; /* a weight as its kernels read it */

/* A weight [n, k] in the layout of the kernels that multiply it. */
narrow_status narrow_prepare(const narrow_quantized* quantized, narrow_weight** weight);
narrow_status narrow_prepare_dense(const narrow_tensor* tensor, narrow_weight** weight);
/* y[..., n] = x[..., k] * w^T + bias: x F32, F16 or BF16; bias F32 [n] or NULL; y of type `dtype` (F32, F16, BF16).
 * activations: NULL, or the scheme that x is rounded to first ("int8:row"). */
narrow_status narrow_matmul(const narrow_tensor* x, const narrow_weight* weight, const narrow_tensor* bias, const char* activations,
                            const char* dtype, narrow_tensor** y);
void narrow_weight_free(narrow_weight* weight);

/* ---- checkpoints ---- */

typedef struct narrow_checkpoint narrow_checkpoint; /* the tensors of a file or a directory, read when they are asked for */

/* A safetensors file or a directory, plain or quantized by narrow; every header is checked. */
narrow_status narrow_checkpoint_open(const char* path, narrow_checkpoint** checkpoint);
int64_t narrow_checkpoint_count(const narrow_checkpoint* checkpoint);
/* Names in order, 0 <= index < count; NULL beyond. */
const char* narrow_checkpoint_name(const narrow_checkpoint* checkpoint, int64_t index);
/* 1 where a tensor is there and quantized by narrow, else 0. */
int32_t narrow_checkpoint_is_quantized(const narrow_checkpoint* checkpoint, const char* name);
/* Values; a quantized tensor in its source's type. And its codes and scales. */
narrow_status narrow_checkpoint_tensor(const narrow_checkpoint* checkpoint, const char* name, narrow_tensor** tensor);
narrow_status narrow_checkpoint_quantized(const narrow_checkpoint* checkpoint, const char* name, narrow_quantized** quantized);
void narrow_checkpoint_free(narrow_checkpoint* checkpoint);

/* Called once or more per tensor with bytes done of all; any answer but 0 ends the work with NARROW_CANCELLED and leaves nothing behind.
 * It must not leave by an exception or a longjmp. */
typedef int (*narrow_progress)(const char* tensor, uint64_t done, uint64_t total, void* user);

/* Quantizes a plain checkpoint by a scheme or a preset ("int4:block128", "W8A8"); output appears when it is complete and verified.
 * ignore: names or patterns that stay as they are, `ignore_count` of them; 0 means lm_head. progress may be NULL. */
narrow_status narrow_checkpoint_quantize(const char* input, const char* output, const char* scheme, const char* const* ignore,
                                         size_t ignore_count, narrow_progress progress, void* user);
narrow_status narrow_checkpoint_dequantize(const char* input, const char* output, const char* dtype, narrow_progress progress, void* user);
/* NARROW_OK where every hash is right (or the structure, of a plain checkpoint), else NARROW_CORRUPT_FILE with the first problem. */
narrow_status narrow_checkpoint_verify(const char* path);

#ifdef __cplusplus
}
#endif
