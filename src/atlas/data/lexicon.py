"""The words that the synthetic sentences are made of.

One `Domain` is the little world of one client. Verbs, judgements and time phrases are shared by all
domains: they are the knowledge that can travel from client to client.
"""

from __future__ import annotations

from dataclasses import dataclass


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split("|"))


@dataclass(frozen=True)
class Domain:
    """The words of one domain.

    Attributes:
        name: What the domain is about.
        people: Roles, without article.
        things: Singular countable nouns that can be judged.
        places: Phrases of place.
        good: Words of praise that belong to the domain.
        bad: Words of blame that belong to the domain.
        luck: Happenings that please whoever tells of them.
        mishaps: Happenings that annoy whoever tells of them.
    """

    name: str
    people: tuple[str, ...]
    things: tuple[str, ...]
    places: tuple[str, ...]
    good: tuple[str, ...]
    bad: tuple[str, ...]
    luck: tuple[str, ...]
    mishaps: tuple[str, ...]


DOMAINS: tuple[Domain, ...] = (
    Domain(
        "films",
        _list("director|actor|critic|producer|composer|editor"),
        _list("plot|ending|script|soundtrack|opening|sequel|trailer|final scene"),
        _list("in the foyer|on the set|at the premiere|behind the screen"),
        _list("gripping|witty|moving"),
        _list("predictable|wooden|overlong"),
        _list("the whole row stayed for the credits|people clapped when the lights came on"),
        _list("half the row left before the end|someone beside us fell asleep"),
    ),
    Domain(
        "kitchens",
        _list("cook|waiter|baker|butcher|guest|dishwasher"),
        _list("soup|pie|roast|stew|pudding|omelette|sauce|starter"),
        _list("in the pantry|at the counter|by the oven|in the dining room"),
        _list("tender|crisp|well seasoned"),
        _list("soggy|burnt|stale"),
        _list("every plate went back empty|the neighbours begged for the recipe"),
        _list("most of it ended in the bin|we ordered a pizza afterwards"),
    ),
    Domain(
        "trains",
        _list("guard|driver|passenger|porter|inspector|signalman"),
        _list("journey|carriage|connection|sleeper|compartment|night service|station|buffet car"),
        _list("on the platform|in the corridor|at the junction|near the ticket office"),
        _list("punctual|roomy|smooth"),
        _list("overcrowded|delayed|draughty"),
        _list("we reached the coast ten minutes early|there were free seats in every coach"),
        _list("we stood all the way to the border|the heating failed in the first tunnel"),
    ),
    Domain(
        "gardens",
        _list("gardener|florist|landlord|neighbour|beekeeper|apprentice"),
        _list("lawn|rose bed|hedge|orchard|pond|greenhouse|vegetable patch|border"),
        _list("by the shed|under the pear tree|along the fence|beside the compost"),
        _list("lush|fragrant|thriving"),
        _list("weedy|parched|withered"),
        _list("the beans climbed higher than the roof|the bees came back in spring"),
        _list("the slugs ate every seedling|the frost took the young shoots"),
    ),
    Domain(
        "phones",
        _list("engineer|tester|customer|designer|reseller|technician"),
        _list("screen|battery|camera|speaker|keyboard|update|charger|signal"),
        _list("in the lab|at the help desk|on the shop floor|at the launch"),
        _list("responsive|sturdy|sharp"),
        _list("laggy|flimsy|blurry"),
        _list("it still had power after two days|it survived a fall down the stairs"),
        _list("it froze in the middle of a call|it had to be sent back within a week"),
    ),
    Domain(
        "hotels",
        _list("receptionist|manager|tourist|chambermaid|bellboy|doorman"),
        _list("room|bed|breakfast|lobby|balcony|pool|view|bathroom"),
        _list("in the lobby|at the front desk|on the top floor|beside the lift"),
        _list("spotless|cosy|peaceful"),
        _list("shabby|noisy|cramped"),
        _list("we stayed for an extra night|they carried our bags up unasked"),
        _list("we moved out after one night|there were ants in the wardrobe"),
    ),
    Domain(
        "sport",
        _list("goalkeeper|referee|captain|coach|striker|physio"),
        _list("match|defence|second half|training session|tactic|pitch|tournament|season"),
        _list("in the changing room|on the touchline|at the stadium|after the whistle"),
        _list("fluent|spirited|disciplined"),
        _list("sluggish|sloppy|toothless"),
        _list("the fans sang until midnight|the stands rose as one"),
        _list("the fans booed from the tenth minute|the stands were empty by the break"),
    ),
    Domain(
        "weather",
        _list("forecaster|sailor|farmer|hiker|lifeguard|ranger"),
        _list("summer|forecast|afternoon|breeze|weekend|sunrise|winter|storm warning"),
        _list("on the ridge|at the harbour|in the valley|near the lighthouse"),
        _list("mild|sunny|refreshing"),
        _list("muggy|drizzly|freezing"),
        _list("we ate outside every evening|the clouds parted just in time"),
        _list("the tent blew into the lake|we never took our coats off"),
    ),
    Domain(
        "schools",
        _list("teacher|pupil|headmaster|caretaker|librarian|tutor"),
        _list("lesson|textbook|exam|field trip|lecture|timetable|assembly|course"),
        _list("in the playground|in the staff room|at the gate|outside the library"),
        _list("instructive|lively|well prepared"),
        _list("confusing|dry|rambling"),
        _list("every hand went up at the end|even the back row took notes"),
        _list("nobody could say what it had been about|the back row played cards"),
    ),
    Domain(
        "concerts",
        _list("conductor|pianist|singer|drummer|violinist|stagehand"),
        _list("encore|overture|solo|programme|chorus|ballad|rehearsal|duet"),
        _list("backstage|in the concert hall|in the gallery|in the wings"),
        _list("tuneful|soulful|precise"),
        _list("shrill|off-key|plodding"),
        _list("the hall called for three encores|strangers hummed it on the way home"),
        _list("people left during the applause|the strings drowned out the voice"),
    ),
    Domain(
        "shops",
        _list("cashier|tailor|shopkeeper|supplier|clerk|courier"),
        _list("coat|sale|display|delivery|discount|jacket|checkout|catalogue"),
        _list("at the till|in the stockroom|near the entrance|by the fitting room"),
        _list("affordable|well made|stylish"),
        _list("overpriced|shoddy|ill-fitting"),
        _list("I went back for a second one|they refunded the difference without a word"),
        _list("the seams came apart within days|nobody answered our letters"),
    ),
    Domain(
        "clinics",
        _list("doctor|nurse|patient|surgeon|pharmacist|visitor"),
        _list("treatment|ward|check-up|waiting room|diagnosis|operation|therapy|appointment"),
        _list("on the ward|at the pharmacy|in the waiting room|near the X-ray room"),
        _list("painless|thorough|gentle"),
        _list("painful|hasty|careless"),
        _list("I could walk again the same day|they took time for every question"),
        _list("the wound opened again at night|they mixed up our papers twice"),
    ),
)

GOOD = _list(
    "splendid|delightful|superb|charming|wonderful|first-rate|a pleasure|a triumph|outstanding|"
    "worth every penny|a joy|lovely|flawless|a treat|spot on|satisfying|impressive|a gem"
)
BAD = _list(
    "dreadful|dull|disappointing|tedious|awful|second-rate|a chore|a failure|mediocre|"
    "a waste of money|a bore|dismal|a mess|a letdown|all wrong|frustrating|lamentable|a disgrace"
)

# Verdicts that can follow any opinion.
PRAISE = _list(
    "we shall come again|I would gladly repeat it|ten out of ten from me|nothing was missing|"
    "I told all my friends about it with a smile|we went home smiling|I have no complaints|"
    "somebody deserves a prize"
)
BLAME = _list(
    "we shall not come again|I would not repeat it|two out of ten from me|too much was missing|"
    "I told all my friends to stay away|we went home grumbling|I have sent a complaint|"
    "somebody deserves a fine"
)

OPENERS = _list("|||last week,|this time,|as I recall,|once more,|to be honest,")
ADVERBS = _list("||really|frankly|simply|clearly")
DENIALS = _list("anything but|far from|not at all|by no means|never really")
CONCESSIONS = _list("although|even though|while")
CONTRASTS = _list("but|yet|but in the end")
ASSENTS = _list("and was right|and I see it the same way|and nobody can deny it")
DISSENTS = _list("and was mistaken|and I see it otherwise|and nobody can believe it")
NEGATIONS = _list("never|hardly|nearly|scarcely")
FUNCTION_WORDS = frozenset(
    _list("the|a|an|every|half|was|were|had|by|in|on|at|of|from|to|for|behind|near|under|along")
)

# Past tense (equal to the participle), a synonym, and a verb that says something else.
PERSON_VERBS: tuple[tuple[str, str, str], ...] = (
    ("praised", "commended", "criticised"),
    ("helped", "assisted", "hindered"),
    ("hired", "employed", "dismissed"),
    ("warned", "alerted", "reassured"),
    ("greeted", "welcomed", "ignored"),
    ("phoned", "telephoned", "visited"),
    ("rescued", "saved", "abandoned"),
    ("teased", "mocked", "flattered"),
    ("questioned", "interrogated", "entertained"),
    ("recommended", "endorsed", "rejected"),
    ("paid", "remunerated", "fined"),
    ("cheered up", "consoled", "upset"),
    ("trained", "coached", "replaced"),
    ("blamed", "accused", "pardoned"),
    ("admired", "looked up to", "despised"),
    ("followed", "trailed", "avoided"),
)

# Two ways to say the same, and one that says something else.
TIMES: tuple[tuple[str, str, str], ...] = (
    ("twice", "two times", "four times"),
    ("three times", "on three occasions", "five times"),
    ("for an hour", "for sixty minutes", "for a minute"),
    ("every day", "daily", "once a year"),
    ("at noon", "at midday", "at midnight"),
    ("at dawn", "at daybreak", "at dusk"),
    ("two weeks ago", "a fortnight ago", "two years ago"),
    ("on Saturday and Sunday", "at the weekend", "on Monday"),
    ("often", "frequently", "rarely"),
    ("at once", "immediately", "much later"),
    ("in secret", "secretly", "in public"),
    ("by mistake", "accidentally", "on purpose"),
)
