"""The vocabulary of the bounds file: which scenario reports which metric, in which modes, under which parameters.

The loader refuses a name that is not listed here, because a bound on a misspelt metric would never fail. A scenario
may report more than is listed; only what a bound speaks of must be here. Names end in their unit where they have one;
``a_over_b`` is a ratio, and yes-or-no measures are 1 or 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ANY_SCENARIO: Final = "any"
"""The scenario name of rows that every scenario is judged by."""

LOOP_LAG_P99: Final = "loop_lag_p99_ms"
LOOP_LAG_MAX: Final = "loop_lag_max_ms"
"""By how much the event loop was late: the harness measures both in every run on sockets."""

METRICS: Final[Mapping[str, frozenset[str]]] = {
    ANY_SCENARIO: frozenset({"convergence_seconds", "safety_violations", "trace_hashes_equal"}),
    "content_swarm": frozenset(
        {
            "aggregate_over_raw_stream",
            "aggregate_over_single_stream",
            "bytes_received_over_needed",
            "longest_stall_seconds",
            "seeder_share",
            "time_over_fluid_bound",
            "time_ratio_to_single_stream",
        }
    ),
    "pdt": frozenset(
        {
            "append_bytes_max",
            "bytes_moved_beyond_window",
            "bytes_moved_over_window",
            "bytes_per_edit",
            "bytes_received_over_tree",
            "complete",
            "costliest_reader_bytes",
            "eager_copies_over_writer_edges_max",
            "edit_bytes_max",
            "edit_bytes_median",
            "edit_bytes_over_level_1_max",
            "first_merging_read_ms",
            "follower_fetches",
            "insert_bytes_max",
            "insert_bytes_median",
            "map_complete",
            "map_round_trips_beyond_depth",
            "negentropy_bytes",
            "negentropy_rounds",
            "next_edit_bytes",
            "riblt_bytes",
            "riblt_cpu_ms",
            "riblt_rounds",
            "round_trips",
            "round_trips_beyond_depth",
            "splice_bytes_max",
            "stores_share",
            "time_over_flat_swarm",
            "writer_answers_despite_another_announcer",
            "writer_share",
        }
    ),
    "throughput": frozenset({"owner_over_claim_takes", "tasks_lost", "tasks_taken_twice"}),
    "gossip_propagation": frozenset({"payload_redundancy", "visible_over_written"}),
    "churn": frozenset({"digests_equal", "entries_lost", "newcomer_bytes_over_live_state"}),
    "bench": frozenset({"blake3_digest_mib_s", "blake3_outboard_mib_s", "fastcdc_sha256_mib_s", "swarm_over_ceiling"}),
}
"""Scenario to the metrics that a bound may name."""

MODES: Final[Mapping[str, frozenset[str]]] = {
    "pdt": frozenset(
        {
            "blob-append",
            "blob-edit",
            "blob-insert",
            "catch-up",
            "cold",
            "map",
            "push",
            "reconcile",
            "rrb-splice",
            "store-cold",
            "text",
            "verified-window",
        }
    ),
    "bench": frozenset({"fastcdc", "swarm"}),
}
"""Scenario to its modes; a scenario that is not listed has none."""

PARAMETERS: Final = frozenset(
    {
        "bounded_links",
        "differing",
        "disturbed",
        "edits",
        "elements",
        "keys",
        "level",
        "peers",
        "pieces",
        "readers",
        "replays",
        "roots",
        "undisturbed",
    }
)
"""Run parameters that a row's ``when`` may ask a minimum of."""

PARAMETER_REASONS: Final[Mapping[str, str]] = {
    "undisturbed": "speed is not judged under --faults",
    "disturbed": "only under --faults",
    "replays": "no second run was made (--audit, on a run that came to its end)",
    "bounded_links": "only with --rate-mib-s",
}
"""Why a row is not judged for want of such a parameter, in words."""

BINDINGS: Final = frozenset({"dtls", "sim", "tcp", "tls"})
"""Bindings that a row may be confined to."""

STATISTICS: Final = frozenset({"count", "max", "mean", "min", "p50", "p90", "p99", "p99_9"})
"""What ``metric = "name.statistic"`` may take from a metric that a scenario reports as a histogram."""
