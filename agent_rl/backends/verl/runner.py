"""The Ray process that verl's trainer lives in."""

from __future__ import annotations

from typing import Any

import ray


class _Runner:
    """verl's own task runner with our trainer in it."""

    def run(self, config: Any) -> tuple[int, bool]:
        """(last step done, whether it was asked to stop before the end)."""
        import transfer_queue as tq
        from omegaconf import OmegaConf
        from verl.trainer.ppo.v1 import AgentLoopManagerTQ
        from verl.utils.logging_utils import configure_verl_logging

        from agent_rl.backends.verl.environment import check_environment
        from agent_rl.backends.verl.signals import Stopped
        from agent_rl.backends.verl.trainer import AgentTrainer
        from agent_rl.layout import assert_layout

        assert_layout()
        check_environment()
        configure_verl_logging()
        config.transfer_queue.enable = True
        OmegaConf.resolve(config)
        tq.init(config.transfer_queue)
        trainer = None
        try:
            trainer = AgentTrainer(config)
            trainer.init()
            loops = AgentLoopManagerTQ.create(
                config=config,
                llm_client=trainer.get_llm_client(),
                teacher_client=None,
                reward_loop_worker_handles=trainer.get_reward_handles(),
            )
            trainer.fit(loops)
            return trainer.run.train.steps, False
        except Stopped:
            assert trainer is not None
            return trainer.global_steps, True
        finally:
            if trainer is not None:
                trainer.close()
            tq.close()


Runner: Any = ray.remote(num_cpus=1)(_Runner)
