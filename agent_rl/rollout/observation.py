"""Fitting a tool's output into the tokens left to it."""

from __future__ import annotations

from agent_rl.rollout.codec import TokenCodec


def fit_observation(
    body: str, frame: tuple[str, str], max_tokens: int, codec: TokenCodec
) -> tuple[list[int], str, bool]:
    """Tokenise ``frame[0] + body + frame[1]`` within ``max_tokens``.

    Too long a body loses whole lines from its end (a search result is one document a line); a single line that
    is still too long is cut between tokens. The closing part of the frame is always kept
    (verl-project/verl#4918). Returns (ids, their text, whether something was cut); where not even the bare
    frame fits, nothing is written: ([], "", True).
    """
    before, after = frame
    whole = codec.encode(before + body + after)
    if len(whole) <= max_tokens:
        return whole, before + body + after, False
    lines = body.split("\n")
    while len(lines) > 1:
        lines.pop()
        text = before + "\n".join(lines) + after
        ids = codec.encode(text)
        if len(ids) <= max_tokens:
            return ids, text, True
    head, tail = codec.encode(before), codec.encode(after)
    room = max_tokens - len(head) - len(tail)
    if room < 0:
        return [], "", True
    middle = codec.encode(lines[0])[:room]
    return head + middle + tail, before + codec.decode(middle) + after, True
