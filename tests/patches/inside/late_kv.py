"""A KV connector that takes its time, loaded by the engine under test.

It stands in for the decode side of disaggregated serving: a request that asks for a remote prefill waits, as with a network connector, until
the worker side has been asked ``polls`` times whether the transfer is done. No KV is moved, so what such a request generates has no meaning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata


@dataclass
class Transfers(KVConnectorMetadata):
    """From the scheduler to the worker: request id and polls of each transfer that begins."""

    begin: list[tuple[str, int]] = field(default_factory=list)


class LateKV(KVConnectorBase_V1):
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self._begin: list[tuple[str, int]] = []
        self._seen: set[str] = set()
        self._polls_left: dict[str, int] = {}

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        asked = (request.kv_transfer_params or {}).get("do_remote_prefill")
        if not asked or request.request_id in self._seen:
            return 0, False
        return len(request.prompt_token_ids) - num_computed_tokens, True

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens > 0:
            self._seen.add(request.request_id)
            self._begin.append((request.request_id, request.kv_transfer_params["polls"]))

    def build_connector_meta(self, scheduler_output: Any) -> Transfers:
        begin, self._begin = self._begin, []
        return Transfers(begin)

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        self._seen.discard(request.request_id)
        return False, None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._polls_left.update(self._get_connector_metadata().begin)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[None, set[str]]:
        for request_id in self._polls_left:
            self._polls_left[request_id] -= 1
        # An aborted request's transfer is given up at once; until then the scheduler keeps its blocks.
        done = {
            request_id for request_id, left in self._polls_left.items() if left <= 0 or request_id in finished_req_ids
        }
        for request_id in done:
            del self._polls_left[request_id]
        return None, done

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...

    def reset_cache(self) -> bool:
        return True
