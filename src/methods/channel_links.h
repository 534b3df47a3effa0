#pragma once
/// Where a factor on the channels of an input can be hidden: divided out of what makes the input, multiplied into what reads it.

#include <string>
#include <vector>

#include "methods/changed_checkpoint.h"
#include "narrow/methods.h"
#include "narrow/model.h"

namespace narrow {

/// A source (a norm, or the Linear layer whose output rows are the channels) and the Linear layers that read its channels.
struct ChannelLink {
  std::string source;
  std::int64_t channels = 0;            ///< of the source
  std::vector<std::string> readers;     ///< modules; the first one sees all of the input, experts the rows that a router sends them
  std::vector<std::int64_t> source_of;  ///< the source's channel behind each column of the readers
};

/// Of every layer: input_layernorm to q, k, v; v to o (the query heads of a group share their factors); post_attention_layernorm to gate,
/// up of every expert and to the router; up to down, since its output is multiplied with the gate's element by element.
std::vector<ChannelLink> channel_links(const ModelConfig& config);

/// The changes that divide the channels of sources by `factors` and multiply the readers' columns; the function stays the same.
/// Throws InvalidArgument where a source is none of the model's, or its factors are not as many, finite and positive.
TensorChanges scaled_channels(const Checkpoint& input, const ChannelFactors& factors);

/// The statistics that the changed model's inputs have, where they follow: largest magnitudes of channels and second moments.
CalibrationStatistics scaled_statistics(const CalibrationStatistics& statistics, const std::vector<ChannelLink>& links,
                                        const ChannelFactors& factors);

}  // namespace narrow
