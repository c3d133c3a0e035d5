"""Write what transformers makes of conversations with chat templates as they were published.

usage: templates.py DIRECTORY > tests/data/chat/published.json      needs: transformers (5.23.0 was used)
       DIRECTORY: models/templates of llama.cpp, where SMOL_PUBLISHED points

Of each template and conversation: the length and the SHA-256 of the text, both of its UTF-8, or the error.

transformers has no filter `from_json`. Three templates name it, which were written for llama.cpp: here it is Python's
json.loads.
"""
import datetime, hashlib, json, pathlib, sys
import jinja2
from transformers.utils import chat_template_utils

NOW = 1741507502  # 2025-03-09 08:05:02 UTC
VARIABLES = {"bos_token": "<|begin|>", "eos_token": "<|finish|>"}


class Clock(datetime.datetime):
    @classmethod
    def now(cls):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc)


chat_template_utils.datetime = Clock


def says(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments, id):
    return {"type": "function", "function": {"name": name, "arguments": arguments}, "id": id}


def function(name, description, properties, required):
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    function(
        "get_weather",
        "Tells today's weather at a place, in °C & \"as it is\".",
        {
            "city": {"type": "string", "description": "The city's name."},
            "unit": {
                "type": "string",
                "description": "The unit.",
                "enum": ["celsius", "fahrenheit"],
                "default": "celsius",
            },
        },
        ["city"],
    ),
    function(
        "book_table",
        "Books a table.",
        {
            "guests": {"type": "integer", "description": "How many come.", "minimum": 1, "maximum": 12},
            "names": {"type": "array", "items": {"type": "string"}, "description": "Who they are."},
            "options": {
                "type": "object",
                "description": "What else they want.",
                "properties": {"outside": {"type": "boolean"}, "budget": {"type": ["number", "null"]}},
                "required": ["outside"],
            },
        },
        ["guests", "options"],
    ),
    function("now", "Tells the time.", {}, []),
]
WEATHER = call("get_weather", {"city": "Köln", "unit": "celsius"}, "a1B2c3D4e")
TABLE = {"guests": 3, "names": ["Ann", "Bo's"], "options": {"outside": True, "budget": 99.5}, "note": None}
RESULT = '{"temperature": 7, "sky": "<grey> & \\"wet\\""}'

# The first six are those that a model meets every day.
CONVERSATIONS = {
    "system": {"messages": [says("system", "You are a pirate."), says("user", "Who are you?")]},
    "several turns": {
        "messages": [
            says("user", "Hi"),
            says("assistant", "Hello! How can I help?"),
            says("user", " Tell me a joke.\n"),
            says("assistant", "<think>\nOf what?\n</think>\n\nA horse walks into a bar."),
            says("user", "Another, please."),
        ]
    },
    "tools": {
        "messages": [says("system", "Be brief."), says("user", "How is the weather in Köln?")],
        "tools": TOOLS,
    },
    "tool results": {
        "messages": [
            says("user", "How is the weather in Köln?"),
            says("assistant", "", tool_calls=[WEATHER]),
            says("tool", RESULT, name="get_weather", tool_call_id="a1B2c3D4e"),
            says("assistant", "Grey and wet."),
            says("user", "And then a table for three."),
            says("assistant", "At once.", tool_calls=[call("book_table", TABLE, "f5G6h7I8j")]),
            says("tool", "booked", name="book_table", tool_call_id="f5G6h7I8j"),
        ],
        "tools": TOOLS,
    },
    "empty message": {
        "messages": [says("user", ""), says("assistant", ""), says("user", "Are you there?")]
    },
    "unicode": {
        "messages": [
            says("system", "Réponds en français. ⚜️"),
            says("user", "Grüße aus Köln, 日本語, עברית, 👩‍👩‍👧‍👦 e\u0301 \u200d \ufeff & <b>\"'\\"),
            says("assistant", "\u00a0Ça va\u2028?\t"),
            says("user", "\u3000ẞ İ ﬁ \x1cn\x85"),
        ]
    },
    "answered": {
        "messages": [says("user", "Hi"), says("assistant", "Hello!")],
        "add_generation_prompt": False,
    },
    "reasoning": {
        "messages": [
            says("user", "2+2?"),
            says("assistant", "Four.", reasoning_content="Two and two."),
            says("user", "And the weather in Köln?"),
            says("assistant", "", reasoning_content="I'd better look.", tool_calls=[WEATHER]),
            says("tool", RESULT, tool_call_id="a1B2c3D4e"),
        ],
        "tools": TOOLS[:1],
    },
    "arguments as text": {
        "messages": [
            says("user", "A table for three."),
            {"role": "assistant", "tool_calls": [call("book_table", json.dumps(TABLE), "f5G6h7I8j")]},
            says("tool", "booked", tool_call_id="f5G6h7I8j"),
        ],
        "tools": TOOLS,
    },
    "two calls": {
        "messages": [
            says("system", "Be brief."),
            says("user", "Weather and time?"),
            says("assistant", None, tool_calls=[WEATHER, call("now", {}, "k9L0m1N2o")]),
            says("tool", RESULT, tool_call_id="a1B2c3D4e"),
            says("tool", "12:34", tool_call_id="k9L0m1N2o"),
        ],
        "tools": TOOLS,
    },
    "content in parts": {
        "messages": [
            says("system", [{"type": "text", "text": "Be brief."}]),
            says("user", [{"type": "text", "text": "Who are"}, {"type": "text", "text": " you?"}]),
        ]
    },
    "documents": {
        "messages": [says("user", "What do they say?")],
        "documents": [
            {"title": "One", "text": "First & foremost.", "doc_id": 1},
            {"title": "Deux", "text": "Où ?", "doc_id": 2},
        ],
    },
}


def row(source, conversation):
    rest = {name: value for name, value in conversation.items() if name != "messages"}
    rest = {"add_generation_prompt": True, **rest, **VARIABLES}
    try:
        (text,), _ = chat_template_utils.render_jinja_template(
            [conversation["messages"]], chat_template=source, **rest
        )
    except Exception as error:  # whatever Python finds wrong: there is no text
        return {"error": f"{type(error).__name__}: {error}"}
    text = text.encode()
    return {"len": len(text), "sha256": hashlib.sha256(text).hexdigest()}


def as_json(conversation):
    """All but the flag as JSON in a string, so that nobody changes the order in which objects have their keys."""
    result = {"add_generation_prompt": conversation.get("add_generation_prompt", True)}
    for name in ("messages", "tools", "documents"):
        if name in conversation:
            result[name] = json.dumps(conversation[name], ensure_ascii=False)
    return result


def main():
    jinja2.defaults.DEFAULT_FILTERS["from_json"] = json.loads
    sources = sorted(pathlib.Path(sys.argv[1]).glob("*.jinja"))
    reference = {
        "now": NOW,
        "variables": VARIABLES,
        "conversations": {name: as_json(conversation) for name, conversation in CONVERSATIONS.items()},
        "templates": {
            source.stem: {name: row(source.read_text(), conversation) for name, conversation in CONVERSATIONS.items()}
            for source in sources
        },
    }
    # A line for each row, so that a difference between two versions of the file can be read.
    json.dump(reference, sys.stdout, ensure_ascii=False, indent=0)
    print()


if __name__ == "__main__":
    main()
