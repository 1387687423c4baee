"""Invented names, put together from syllables, each given out once.

A name is a number written in mixed radix, with syllables for digits. Digits alternate between consonants and
vowels (or have a fixed length), so no two numbers spell the same name. Numbers are scattered by a bijection
that depends on the seed: two worlds share few names, and inside one world no surname, town, company, work or
region repeats.
"""

from __future__ import annotations

from math import gcd


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_ONSETS = words("b br c ch cl cr d dr f fl g gl gr h j k l m n p pr qu r s sk st t tr v w")
_VOWELS = tuple("aeiou")
_MIDDLES = words("b d l ld lm lv m n nd nt r rb rd rk rl rn rs rv s sk st t v x")
_FIRST_TAILS = words("rvo len mar nna ris vin ldo sta rek lio mia nor dis van lla tan")
_SURNAME_TAILS = words("ack ade aft all ane ask ay eck een ell ent est ick ine int ock oll ost uck und")
_COMPANY_TAILS = words("ace ada ana ax eda ena eon era ica ida ion iva ix oda ona ora oxa ula una yx")
_WORK_TAILS = words("ai ara ea ela eth eva iel ila ira ith oa ola oth ova ua ulo umi ura uva yth")
_REGION_TAILS = words("ain alt ar een elt er ian ild or oun uld ur")
_TOWN_NUCLEI = words("a e i o u ai au ea oo ou")
_TOWN_MIDDLES = tuple("dlmnrstv")
_TOWN_ENDINGS = words(
    "beck bridge brook burn bury by cliff combe cote croft dale dean fell field firth ford gate ham "
    "harbour haven head hill holm hurst keld kirk land leigh ley lock mere minster mouth ness port ridge sea "
    "shaw side stead stoke stone stow thorpe ton toft vale wald wall wick wold wood worth"
)
_REGION_KINDS = ("Valley", "Hills", "Coast", "Marshes", "Moors", "Plain", "Islands", "Forest")
_COMPANY_NOUNS = words("Works Brothers Company Partners Trading Workshop Union Guild Stores House Supply Mills")
_WORK_PATTERNS = (
    "The Lantern of {}",
    "A Winter in {}",
    "The Road to {}",
    "Letters from {}",
    "The Bells of {}",
    "{} at Dawn",
    "Farewell to {}",
    "The Gardens of {}",
    "Songs of {}",
    "The Keeper of {}",
    "Beyond {}",
    "The Last Ship to {}",
)

COMPANIES_PER_STEM = 2
WORKS_PER_STEM = 3
TOWNS_PER_STEM = 2


class Names:
    """The names of one world: each method maps a number to a name, one to one.

    There are 2,400 first names, 72,000 surnames, 124,800 towns, 144,000 companies, 216,000 works and 43,200
    regions, which a world of 1,000,000 passages does not use up. Raises ValueError for a number beyond them.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def first(self, number: int) -> str:
        return self._word(number, 1, _ONSETS, _VOWELS, _FIRST_TAILS)

    def surname(self, number: int) -> str:
        return self._word(number, 2, _ONSETS, _VOWELS, _MIDDLES, _SURNAME_TAILS)

    def region(self, number: int) -> str:
        stem = self._word(number, 3, _ONSETS, _VOWELS, _MIDDLES, _REGION_TAILS)
        return f"{stem} {_REGION_KINDS[number % len(_REGION_KINDS)]}"

    def town(self, number: int) -> str:
        """Towns 2n and 2n + 1 are look-alikes: one stem, two endings."""
        pair, member = divmod(number, TOWNS_PER_STEM)
        digits = (_ONSETS, _TOWN_NUCLEI, _TOWN_MIDDLES)
        round_, stem = divmod(pair, _size(digits))
        if TOWNS_PER_STEM * round_ + member >= len(_TOWN_ENDINGS):
            raise ValueError(f"town number {number} is beyond the names there are")
        # A stem comes back once per round, with the next two endings; the shift varies them between stems.
        ending = _TOWN_ENDINGS[(TOWNS_PER_STEM * round_ + member + 7 * stem) % len(_TOWN_ENDINGS)]
        return self._word(stem, 4, *digits) + ending

    def company(self, number: int) -> str:
        """Companies 2n and 2n + 1 are look-alikes: one stem, two nouns."""
        stem, member = divmod(number, COMPANIES_PER_STEM)
        noun = _COMPANY_NOUNS[(5 * stem + member) % len(_COMPANY_NOUNS)]
        return f"{self._word(stem, 5, _ONSETS, _VOWELS, _MIDDLES, _COMPANY_TAILS)} {noun}"

    def work(self, number: int) -> str:
        """Works 3n, 3n + 1 and 3n + 2 are look-alikes: one stem in three phrases."""
        stem, member = divmod(number, WORKS_PER_STEM)
        pattern = _WORK_PATTERNS[(5 * stem + member) % len(_WORK_PATTERNS)]
        return pattern.format(self._word(stem, 6, _ONSETS, _VOWELS, _MIDDLES, _WORK_TAILS))

    @staticmethod
    def first_count() -> int:
        return _size((_ONSETS, _VOWELS, _FIRST_TAILS))

    def _word(self, number: int, salt: int, *digits: tuple[str, ...]) -> str:
        size = _size(digits)
        if not 0 <= number < size:
            raise ValueError(f"name number {number} is outside 0..{size - 1}")
        step = 7919 + 2 * salt + 104_729 * (self._seed % 9973)
        while gcd(step, size) != 1:  # only then is the map below a bijection on 0..size-1
            step += 1
        number = (number * step + 15_485_863 * (self._seed % 32_749) + salt) % size
        parts = []
        for syllables in digits:
            number, rest = divmod(number, len(syllables))
            parts.append(syllables[rest])
        return "".join(parts).capitalize()


def _size(digits: tuple[tuple[str, ...], ...]) -> int:
    size = 1
    for syllables in digits:
        size *= len(syllables)
    return size
