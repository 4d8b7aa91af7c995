"""Names and words that the compactor's trial is made of."""

from __future__ import annotations

from collections.abc import Sequence

PLAYERS = ("Wren Tallis", "Oskar Brandt", "Tamsin Veyra", "Ilse Korrin")
PEOPLE = (
    "Inspector Holt", "Mother Pell", "Captain Ruda", "Ivo Sark", "Lady Amberine", "Brother Cass",
    "Judge Orlan", "Old Gorm", "Doctor Fenn", "Sister Quill",
)  # fmt: skip
NEWCOMERS = (
    "Corporal Dask", "Widow Threll", "Master Obry", "Jory Lunt", "Magda Voss", "Perrin Ashe",
    "Captain Zell", "Nan Tiller", "Rook Halloran", "Abbot Sevrin", "Kit Marlow", "Baron Ulst",
)  # fmt: skip
PLACES = (
    "Tin Lantern", "Ashmoor Abbey", "Saltgate Docks", "Harrow Hall", "Cinder Market", "Fox Hollow",
    "Gullrock Light", "Undercroft",
)  # fmt: skip
FOUND_PLACES = ("Weeping Stair", "Glass Orchard", "Drowned Chapel", "Kiln Row", "Owl Battery")
ROLES = ("locksmith", "cartographer", "chandler", "spy", "falconer", "bookbinder", "diver")
FEELINGS = ("grateful", "suspicious", "furious", "smitten", "indebted", "afraid", "loyal")
FATES = ("imprisoned", "missing", "dead", "bedridden", "in exile", "sworn in")
CONDITIONS = ("poisoned", "limping", "cursed", "feverish", "deafened", "frostbitten")
THINGS = (
    "brass astrolabe", "vial of wolfmilk", "hare seal", "black candle", "whalebone dice",
    "silver thimble", "iron mask", "bundle of letters", "jar of bees", "moth-key", "blue lantern",
    "cracked mirror", "gilded spur", "map of the sewers", "bone flute", "red ledger",
    "clockwork wren", "coil of wire", "opal ring", "sack of flour", "harpoon", "raven's feather",
    "salt charm", "tuning fork", "box of chalk", "velvet glove", "empty birdcage", "tin soldier",
)  # fmt: skip
RELICS = ("Quietus", "Hollow Crown", "Lamp of Ys", "Third Hand", "Bellwether", "Grey Chalice")
QUESTS = (
    "Fading Muffle", "Stolen Bells", "Bride of the Tide", "Empty Crypt", "Salt Tax", "Lost Heir",
    "Burnt Mill", "Ninth Nail", "Sleeping Jury", "Paper Crown",
)  # fmt: skip
THREATS = ("Blankmen", "Red Tide", "Velvet Ledger", "Tidewalked", "Ash Fever", "Owl Court")
CLOCKS = ("Hue and Cry", "Rising Water", "Patience of the Judge", "Fuse", "Long Winter")
ABILITIES = ("Second Sight", "Knifework", "Quick Hands", "Beast Tongue", "Ironskin", "Far Step")
STEPS = (
    "bribe the sexton", "follow the barge", "ask at the mint", "dig under the elm", "steal the key",
    "warn the guild", "burn the letters", "find the midwife", "row out at dawn", "open the vault",
    "read the third will", "hide the child", "pay the piper", "search the attic", "wait for snow",
    "call in the favour", "cut the rope", "watch the chandler", "swap the coffins",
)  # fmt: skip
TOPICS: Sequence[tuple[str, Sequence[str]]] = tuple(
    (subject, values.split("/"))
    for subject, values in (
        ("The toll at the bridge is", "one copper/two crowns/a lock of hair"),
        ("The password of the guild is", "heron/candle/ninepins"),
        ("The price on the duke's head is", "forty crowns/ninety crowns"),
        ("The tide gate opens at", "dawn/midnight"),
        ("The baker's debt stands at", "six marks/eleven marks"),
        ("The watch changes at", "nine bells/four bells"),
        ("The heir was born in", "Merrow/Tarn"),
        ("The vault has a lock of", "seven pins/nine pins"),
        ("The mayor drinks nothing but", "plum brandy/goat's milk"),
        ("The ferry costs", "a song/three pears"),
        ("The abbey's bell is tuned to", "F sharp/B flat"),
        ("The assassin's blade is coated in", "wolfsbane/quicksilver"),
        ("The treaty ends on", "the longest night/the first frost"),
        ("The mill belongs to", "the miller's widow/the Owl Court"),
        ("The old king's ring shows", "a hare/a drowned bell"),
        ("The lighthouse burns", "seal oil/powdered bone"),
    )
)
SECRETS = (
    "was paid to betray them", "is the old king's child", "cannot read", "hid the second will",
    "has the ash fever", "poisoned the well", "is married to a ghost", "wrote the false letters",
    "fears open water", "sold the bells", "killed the sexton", "owes the Owl Court a life",
)  # fmt: skip
HAPPENED = (
    "the granary burned to the ground", "the bells rang by themselves", "a whale came ashore",
    "the jury fell asleep at noon", "the bridge of ropes gave way", "snow fell on the harbour",
    "the statue wept salt", "all the mirrors in town cracked", "the fleet sailed without lights",
    "the well ran red", "a comet stood over the abbey", "the mint was robbed by children",
)  # fmt: skip
