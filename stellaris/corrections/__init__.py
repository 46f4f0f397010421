"""Corrections for stale data: importance ratios, caps, weights, masks, clip widths and effective samples."""

from stellaris.corrections.caps import global_ratio_cap as global_ratio_cap
from stellaris.corrections.caps import least_ratio_cap as least_ratio_cap
from stellaris.corrections.caps import truncate_ratio as truncate_ratio
from stellaris.corrections.clipping import ClipWidths as ClipWidths
from stellaris.corrections.clipping import adaptive_clip as adaptive_clip
from stellaris.corrections.clipping import balanced_clip as balanced_clip
from stellaris.corrections.clipping import second_moment_clip as second_moment_clip
from stellaris.corrections.effective_samples import effective_sample_fraction as effective_sample_fraction
from stellaris.corrections.effective_samples import scale_by_effective_samples as scale_by_effective_samples
from stellaris.corrections.masks import bidirectional_kl_mask as bidirectional_kl_mask
from stellaris.corrections.masks import off_policy_sequence_mask as off_policy_sequence_mask
from stellaris.corrections.masks import probability_mask as probability_mask
from stellaris.corrections.masks import second_moment_mask as second_moment_mask
from stellaris.corrections.masks import total_variation_mask as total_variation_mask
from stellaris.corrections.ratios import approximate_proximal_log_ratio as approximate_proximal_log_ratio
from stellaris.corrections.ratios import importance_ratio as importance_ratio
from stellaris.corrections.ratios import sequence_log_ratio as sequence_log_ratio
from stellaris.corrections.weights import BoundedImportanceWeight as BoundedImportanceWeight
from stellaris.corrections.weights import bounded_importance_weight as bounded_importance_weight
from stellaris.corrections.weights import vespo_weight as vespo_weight
