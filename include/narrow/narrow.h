#pragma once
/// Everything of narrow.

#include "narrow/calibrate.h"
#include "narrow/checkpoint.h"
#include "narrow/codec.h"
#include "narrow/error.h"
#include "narrow/evaluate.h"
#include "narrow/format.h"
#include "narrow/generate.h"
#include "narrow/matmul.h"
#include "narrow/methods.h"
#include "narrow/model.h"
#include "narrow/quantize.h"
#include "narrow/recipe.h"
#include "narrow/scheme.h"
#include "narrow/search.h"
#include "narrow/tensor.h"
#include "narrow/tokenizer.h"
