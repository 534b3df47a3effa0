#pragma once
/// The tensors that a configuration asks for.

#include <string>

#include "narrow/checkpoint.h"

namespace narrow::model {

/// Throws CorruptFile unless the tensor is there, floating and of this shape.
void check_tensor(const Checkpoint& checkpoint, const std::string& name, const Shape& shape);

}  // namespace narrow::model
