"""Writes the files of the six clients beside it: `python examples/clients/make_clients.py`.

Every row is a matter of the client's own place and a remark that decides about the label. Remarks
are common to the clients of a task: each meets some of them in its few rows, and all of them
together meet most. So a client that learns from its like knows remarks that it never saw.
"""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

ROWS = 100
SEED = 7

REMARKS = {
    "urgent": [
        "it has to be seen to before the next hour is over",
        "people are standing here and cannot go on",
        "we have no second one to fall back on",
        "it is spreading and we cannot hold it any longer",
        "somebody could get hurt",
        "please drop everything else",
        "nobody dares to go near it",
        "every minute of this costs us",
        "we had to send everyone out",
        "it stopped in the middle of the work",
        "there is smoke coming out of it",
        "I have called three times and it rings on",
        "we are holding it together with our hands",
        "the doors are locked and there are people inside",
        "it will not last until tonight",
        "the alarm has been going since seven",
        "we have run out of what we need to go on",
        "it failed again while we watched",
        "the water is already at the sockets",
        "do not wait for the next shift",
        "it went dark all at once",
        "we are at the last one and it is cracked",
    ],
    "routine": [
        "any day next week will do",
        "there is no hurry about it at all",
        "we manage quite well until then",
        "just put it on the list",
        "it would be nice to have, that is all",
        "ask me again after the holidays",
        "we use the other one meanwhile",
        "it only looks a little worn",
        "I wanted to mention it while I think of it",
        "this is for the yearly count",
        "the old one still does its work",
        "could you tell me which form I need",
        "it can wait for your next round",
        "we would like it in a lighter colour",
        "nobody has noticed it but me",
        "send it with the usual order",
        "I am only asking for next year's plan",
        "it squeaks a bit, as it always has",
        "whenever you happen to pass by",
        "keep it for the next meeting",
        "there are plenty left in the cupboard",
        "we thought of moving it some time",
    ],
    "praise": [
        "we were done before the coffee got cold",
        "I have told all my neighbours",
        "my mother asked where I had it from",
        "we stayed an hour longer than we meant to",
        "I would walk across town for it",
        "there was nothing left on the table",
        "even my father had no remark to make",
        "we have booked the same for the spring",
        "it was as if they had known us for years",
        "the children asked when we go again",
        "they thought of things that I had forgotten",
        "I have stopped looking anywhere else",
        "for that money I had expected half of it",
        "somebody had taken real care there",
        "I slept on it and still smile",
        "they remembered how I like it",
        "it was put right before I had finished asking",
        "I kept the card",
        "we raised our glasses to them",
        "it made a grey day bright",
        "I had come for one and left with three",
        "they would not let me carry it myself",
    ],
    "complaint": [
        "I asked twice and was looked through",
        "the photograph shows another thing altogether",
        "we left half of it behind",
        "that was the last time for us",
        "I could have done it better with my eyes shut",
        "it went straight into the bin",
        "for that money I had expected twice as much",
        "we waited until we no longer wanted it",
        "they shrugged and turned away",
        "my letter about it was never answered",
        "it was sticky before we touched it",
        "somebody should look at that place at night",
        "we ate at the station instead",
        "I have asked for my money back",
        "the smell came home with us",
        "they spoke about us as if we were not there",
        "it broke on the way to the car",
        "we counted our change twice, and rightly so",
        "nobody there knew whose work it was",
        "the best of it was the way out",
        "I would not send my worst guest there",
        "it was promised for noon and came on Thursday",
    ],
}

MATTERS = {
    "support": [
        "the printer on the third floor",
        "the login page",
        "the mail server",
        "the projector in room nine",
        "the lamp over the copier",
        "the backup disk",
        "the phone at the front desk",
        "the badge reader",
        "the shared calendar",
        "the cable behind the rack",
        "the screen in the hall",
        "the payroll program",
    ],
    "ward": [
        "the bed by the window",
        "the pump in room two",
        "the drip stand",
        "the fridge for samples",
        "the call button of bed six",
        "the lift to the theatre",
        "the oxygen line",
        "the medicine trolley",
        "the monitor in the corner",
        "the dressing room",
        "the linen cupboard",
        "the night lamp",
    ],
    "workshop": [
        "the lathe by the gate",
        "the belt of the sander",
        "the paint booth",
        "the crane hook",
        "the air hose",
        "the forklift",
        "the saw guard",
        "the drill stand",
        "the welding bench",
        "the gas bottle rack",
        "the dust filter",
        "the steel door",
    ],
    "bakery": [
        "the rye loaf",
        "the wedding cake",
        "the girl at the counter",
        "the plum tart",
        "the rolls on Sunday",
        "the coffee by the window",
        "the gift box",
        "the queue at eight",
        "the birthday order",
        "the sesame rings",
        "the cheese pretzel",
        "the new opening hours",
    ],
    "hotel": [
        "the room under the roof",
        "the breakfast hall",
        "the night porter",
        "the pool",
        "the shuttle from the airport",
        "the view of the yard",
        "the minibar",
        "the family suite",
        "the reception",
        "the towels",
        "the sauna",
        "the evening menu",
    ],
    "garage": [
        "the brake job",
        "the tyre change",
        "the loan car",
        "the man at the desk",
        "the yearly check",
        "the new clutch",
        "the paint on the door",
        "the estimate",
        "the pick-up service",
        "the oil change",
        "the repaired window",
        "the battery they fitted",
    ],
}

FORMS = [
    "about {matter}: {remark}",
    "{remark}. it is about {matter}",
    "{matter}, as of today: {remark}",
    "a word on {matter}. {remark}",
    "{remark}; I mean {matter}",
]

CLIENTS = {
    "support.csv": ("urgent", "routine"),
    "ward.jsonl": ("urgent", "routine"),
    "workshop.csv": ("urgent", "routine"),
    "bakery.csv": ("praise", "complaint"),
    "hotel.jsonl": ("praise", "complaint"),
    "garage.csv": ("praise", "complaint"),
}


def make_rows(client: str, labels: tuple[str, str]) -> list[dict[str, str]]:
    """Different rows of one client, half of each label."""
    draw = random.Random(f"{SEED} {client}")
    rows: dict[str, str] = {}
    while len(rows) < ROWS:
        label = labels[len(rows) % 2]
        remark, matter = draw.choice(REMARKS[label]), draw.choice(MATTERS[client])
        rows.setdefault(draw.choice(FORMS).format(matter=matter, remark=remark), label)
    mixed = [{"text": text, "label": label} for text, label in rows.items()]
    draw.shuffle(mixed)
    return mixed


def write_rows(path: Path, rows: list[dict[str, str]]) -> None:
    """As JSON lines or as CSV, by the suffix."""
    with path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix == ".jsonl":
            file.writelines(json.dumps(row) + "\n" for row in rows)
        else:
            table = csv.DictWriter(file, ["text", "label"], lineterminator="\n")
            table.writeheader()
            table.writerows(rows)


def main() -> None:
    """Write all files."""
    folder = Path(__file__).parent
    for name, labels in CLIENTS.items():
        write_rows(folder / name, make_rows(Path(name).stem, labels))


if __name__ == "__main__":
    main()
