"""verl as the trainer: adapters only. The algorithm is `agent_rl.algo`, the loop `agent_rl.rollout`; nothing of verl is
forked or patched."""
