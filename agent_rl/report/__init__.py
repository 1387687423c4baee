"""A static report of one or several runs: one HTML file that needs no network."""

from agent_rl.report.page import write_report

__all__ = ["write_report"]
