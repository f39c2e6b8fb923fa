// SPDX-License-Identifier: Apache-2.0
// Every metric of a coordinator. Names with `vllm:` and `http_` are those of
// vLLM, so that its dashboards work. The figures come this way:
//
//   worker: FlightRecorder, RoundTrips, ExpertStatistics -> heartbeat ->
//   fleet: Membership, StepFigures, Scheduler -> ClusterState ->
//     fleet_metrics.h (/metrics) and `ringfleet status`
//   http: HttpMetrics, Access -> /metrics
#ifndef RINGFLEET_COORDINATOR_METRICS_METRIC_LIST_H_
#define RINGFLEET_COORDINATOR_METRICS_METRIC_LIST_H_

#include "coordinator/metrics/metrics_text.h"

namespace ringfleet::coordinator::metrics {

// Answers over HTTP.
inline constexpr Metric kPromptTokens = {"vllm:prompt_tokens_total",
                                         MetricKind::kCounter,
                                         "Prompt tokens of answers over HTTP."};
inline constexpr Metric kGenerationTokens = {
    "vllm:generation_tokens_total", MetricKind::kCounter,
    "Drawn tokens of answers over HTTP."};
inline constexpr Metric kRequestSuccess = {"vllm:request_success_total",
                                           MetricKind::kCounter,
                                           "Ended choices by reason."};
inline constexpr Metric kTimeToFirstToken = {
    "vllm:time_to_first_token_seconds", MetricKind::kHistogram,
    "From a request's last byte to its first token."};
inline constexpr Metric kInterTokenLatency = {
    "vllm:inter_token_latency_seconds", MetricKind::kHistogram,
    "Between two tokens of a choice."};
inline constexpr Metric kTimePerOutputToken = {
    "vllm:request_time_per_output_token_seconds", MetricKind::kHistogram,
    "Mean time between the tokens of a choice."};
inline constexpr Metric kEndToEndLatency = {
    "vllm:e2e_request_latency_seconds", MetricKind::kHistogram,
    "From a request's last byte to its answer's end."};
inline constexpr Metric kQueueTime = {"vllm:request_queue_time_seconds",
                                      MetricKind::kHistogram,
                                      "Wait of a choice for a slot."};
inline constexpr Metric kPrefillTime = {
    "vllm:request_prefill_time_seconds", MetricKind::kHistogram,
    "From a choice's slot to its first token."};
inline constexpr Metric kDecodeTime = {
    "vllm:request_decode_time_seconds", MetricKind::kHistogram,
    "From a choice's first token to its last."};
inline constexpr Metric kInferenceTime = {
    "vllm:request_inference_time_seconds", MetricKind::kHistogram,
    "From a choice's slot to its last token."};
inline constexpr Metric kRequestPromptTokens = {
    "vllm:request_prompt_tokens", MetricKind::kHistogram,
    "Prompt tokens of a choice that ended."};
inline constexpr Metric kRequestGenerationTokens = {
    "vllm:request_generation_tokens", MetricKind::kHistogram,
    "Drawn tokens of a choice that ended."};
inline constexpr Metric kRequestMaxTokens = {
    "vllm:request_params_max_tokens", MetricKind::kHistogram,
    "Most tokens of a choice, as asked for."};
inline constexpr Metric kRequestChoices = {
    "vllm:request_params_n", MetricKind::kHistogram,
    "Choices for each prompt, as asked for."};
inline constexpr Metric kHttpRequests = {
    "http_requests_total", MetricKind::kCounter,
    "Requests by path, method and class of status."};
inline constexpr Metric kHttpDuration = {
    "http_request_duration_seconds", MetricKind::kHistogram,
    "From a request's last byte to its response's end."};

// Access to the HTTP port.
inline constexpr Metric kAccessLoads = {
    "ringfleet_access_loads_total", MetricKind::kCounter,
    "Reads of the files of API keys and TLS, at the start and after changes."};
inline constexpr Metric kCertificateEnd = {
    "ringfleet_tls_certificate_not_after_seconds", MetricKind::kGauge,
    "Unix time at which the server's certificate ends."};

// The fleet, for jobs of all callers.
inline constexpr Metric kRequestsRunning = {"vllm:num_requests_running",
                                            MetricKind::kGauge,
                                            "Jobs in a slot, of all callers."};
inline constexpr Metric kRequestsWaiting = {
    "vllm:num_requests_waiting", MetricKind::kGauge,
    "Jobs that wait for a slot, of all callers."};
inline constexpr Metric kCacheUsage = {"vllm:kv_cache_usage_perc",
                                       MetricKind::kGauge,
                                       "Used part of the cache, 1 is full."};
inline constexpr Metric kCacheConfig = {
    "vllm:cache_config_info", MetricKind::kGauge, "The cache, as labels."};
inline constexpr Metric kPreemptions = {
    "vllm:num_preemptions_total", MetricKind::kCounter,
    "Sequences that gave their cache blocks to others."};
inline constexpr Metric kPrefixQueries = {
    "vllm:prefix_cache_queries_total", MetricKind::kCounter,
    "Prompt tokens that were looked up in the cache."};
inline constexpr Metric kPrefixHits = {
    "vllm:prefix_cache_hits_total", MetricKind::kCounter,
    "Prompt tokens whose rows were in the cache."};
inline constexpr Metric kIterationTokens = {"vllm:iteration_tokens_total",
                                            MetricKind::kHistogram,
                                            "Tokens evaluated in a step."};
inline constexpr Metric kBuild = {"ringfleet_build_info", MetricKind::kGauge,
                                  "The coordinator's build, as labels."};
inline constexpr Metric kReady = {"ringfleet_ready", MetricKind::kGauge,
                                  "1 while the fleet serves."};
inline constexpr Metric kEpochs = {
    "ringfleet_epochs_total", MetricKind::kCounter,
    "Epochs that became ready, and that failed."};
inline constexpr Metric kReplays = {
    "ringfleet_replays_total", MetricKind::kCounter,
    "Sequences that entered a slot again with tokens that they had drawn."};
inline constexpr Metric kRecomputed = {
    "ringfleet_recomputed_tokens_total", MetricKind::kCounter,
    "Positions evaluated again, after preemptions and failed epochs."};
inline constexpr Metric kCacheBlocks = {
    "ringfleet_cache_blocks", MetricKind::kGauge,
    "Cache blocks of 128 positions in the epoch."};
inline constexpr Metric kUsedCacheBlocks = {
    "ringfleet_used_cache_blocks", MetricKind::kGauge,
    "Cache blocks that sequences have."};
inline constexpr Metric kKeptCacheBlocks = {
    "ringfleet_kept_cache_blocks", MetricKind::kGauge,
    "Cache blocks that no sequence has, kept for later prompts."};
inline constexpr Metric kStepDuration = {
    "ringfleet_step_duration_seconds", MetricKind::kHistogram,
    "Time of a step, without the wait for the step before."};
inline constexpr Metric kStepSequences = {"ringfleet_step_sequences",
                                          MetricKind::kHistogram,
                                          "Sequences with work in a step."};
inline constexpr Metric kTokens = {
    "ringfleet_tokens_total", MetricKind::kCounter,
    "Tokens of all callers: evaluated of prompts, replayed, generated."};
inline constexpr Metric kReadBytes = {
    "ringfleet_memory_read_bytes_total", MetricKind::kCounter,
    "Weights and cache that steps needed from memory, all workers."};
inline constexpr Metric kSentBytes = {
    "ringfleet_sent_bytes_total", MetricKind::kCounter,
    "Payload that workers sent each other in steps."};
inline constexpr Metric kSentBytesPerToken = {
    "ringfleet_sent_bytes_per_token", MetricKind::kGauge,
    "Payload that all workers send for an evaluated token, average of about "
    "the last hundred steps."};
inline constexpr Metric kBusiestExpert = {
    "ringfleet_busiest_expert_ratio", MetricKind::kGauge,
    "Recent tokens of a layer's busiest expert over the mean."};
inline constexpr Metric kExpertImbalance = {
    "ringfleet_expert_imbalance_ratio", MetricKind::kGauge,
    "Time of a layer's busiest coordinate of experts over the mean."};

// Each worker.
inline constexpr Metric kWorkerUp = {"ringfleet_worker_up", MetricKind::kGauge,
                                     "1 while a rank has a living worker."};
inline constexpr Metric kHeartbeatAge = {
    "ringfleet_worker_heartbeat_age_seconds", MetricKind::kGauge,
    "Time since a worker's last heartbeat."};
inline constexpr Metric kWeightBytes = {"ringfleet_worker_weight_bytes",
                                        MetricKind::kGauge,
                                        "Weights of a worker."};
inline constexpr Metric kCacheBytes = {"ringfleet_worker_cache_bytes",
                                       MetricKind::kGauge,
                                       "Latent cache of a worker, reserved."};
inline constexpr Metric kMemoryBytes = {
    "ringfleet_worker_resident_memory_bytes", MetricKind::kGauge,
    "Resident memory of a worker's process."};
inline constexpr Metric kCollectives = {
    "ringfleet_collectives_total", MetricKind::kCounter,
    "Operations between workers that ended well, as each worker counts them."};
inline constexpr Metric kCollectiveSeconds = {
    "ringfleet_collective_seconds_total", MetricKind::kCounter,
    "Time in operations between workers, of each worker."};
inline constexpr Metric kCollectiveBytes = {
    "ringfleet_collective_sent_bytes_total", MetricKind::kCounter,
    "Payload sent in operations between workers, of each worker."};
inline constexpr Metric kPeerRoundTrip = {
    "ringfleet_peer_rtt_seconds", MetricKind::kGauge,
    "Shortest round trip between two workers of the latest heartbeats."};

}  // namespace ringfleet::coordinator::metrics

#endif  // RINGFLEET_COORDINATOR_METRICS_METRIC_LIST_H_
