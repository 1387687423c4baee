"""Making retrieved text harmless: a page must not be able to answer, think or call for the model."""

from __future__ import annotations

import re

# Every tag that means something in one of our grammars, or in the chat formats of the models we train
TAG_NAMES = (
    "search",
    "information",
    "result",
    "documents",
    "answer",
    "think",
    "python",
    "code",
    "output",
    "interpreter",
    "sql",
    "tool",
    "tools",
    "tool_call",
    "tool_response",
    "begin_of_query",
    "end_of_query",
    "begin_of_documents",
    "end_of_documents",
    "im_start",
    "im_end",
    "endoftext",
    "eot_id",
    "begin_of_text",
    "end_of_text",
    "start_header_id",
    "end_header_id",
)

# "< / Answer >", "<answer type='x'>", "<|im_end|>": blanks, case, attributes and bars do not hide a tag
_TAG = re.compile(
    r"<(\s*[/|]?\s*(?:" + "|".join(TAG_NAMES) + r")\b[^<>]{0,200}|\|[^<>|]{1,60}\|)>",
    re.IGNORECASE,
)
# an opening that never closes could close in text that the model writes after it
_OPEN_TAG = re.compile(r"<(?=\s*[/|]?\s*(?:" + "|".join(TAG_NAMES) + r")\b)", re.IGNORECASE)


def neutralise_tags(text: str) -> str:
    """``text`` with the angle brackets of anything that looks like one of our tags turned into ‹ ›.

    Visible on purpose: a reader of a trajectory sees that the page tried. Other markup is left alone.
    """
    return _OPEN_TAG.sub("‹", _TAG.sub(r"‹\1›", text))
