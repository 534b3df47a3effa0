#pragma once
/// Everything of narrow.

#include "narrow/checkpoint.h"
#include "narrow/codec.h"
#include "narrow/error.h"
#include "narrow/format.h"
#include "narrow/matmul.h"
#include "narrow/model.h"
#include "narrow/quantize.h"
#include "narrow/recipe.h"
#include "narrow/scheme.h"
#include "narrow/tensor.h"
