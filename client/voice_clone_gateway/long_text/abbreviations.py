"""Words that take a full stop without ending a sentence, in several languages.

Case does not matter; the words have no stop. Single letters, letters with stops between them (e.g., z.B., U.S.) and the
numbers of lists need no entry: `sentences` has rules for them. A missing word causes a wrong pause; an ordinary word in
these lists would hide a boundary, so the first list has none.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


BEFORE_NAME = _words(
    """
    mr mrs ms messrs dr drs prof rev revd hon pres gov sen rep gen lt col cpt capt cmdr sgt maj adm st mt supt vs viz cf
    hr hrn frl dipl dr.-ing ggf bzw bspw evtl vgl sog inkl exkl zzgl betr insb
    mm mme mmes mlle mlles mgr pr ste env apr bd
    sra sres srta sto dra dña exmo exma ud uds lic arq
    sig sigg sig.ra dott dott.ssa avv geom egr spett
    г-н г-жа проф акад им ул обл тыс млн млрд
    """
)
"""Never the end of a sentence: titles, and words that introduce something."""

BEFORE_NUMBER = _words(
    """
    no nos nr nrs num núm n° p pp pg pgs fig figs abb tab tbl vol vols ch chap sec sect art arts abs par eq ex ed al
    ca approx circa tel ext max min op ver rev kap ziff pos lfd pág págs cap pag av boul стр рис табл гл
    jan feb mar apr jun jul aug sep sept oct okt nov dec dez
    """
)
"""Not the end of a sentence if a number follows."""

BEFORE_ORDINAL = _words(
    """
    der die das den dem des ein eine einen einem einer eines am im vom zum zur beim ab bis seit und
    jeder jede jedes jeden jedem dieser diese dieses diesem diesen
    ihr ihre ihrem ihren sein seine seinem seinen mein meine meinem meinen
    """
)
"""Before a number of one or two digits whose stop makes it an ordinal, as German writes them."""

AT_END_TOO = _words(
    """
    etc usw usf ff str inc ltd co corp bros llc plc gmbh jr sr esq dept univ ave blvd rd a.m p.m ph.d b.c a.d ecc
    др пр руб коп
    """
)
"""May stand at the end of a sentence: it is one unless the next word begins with a small letter."""
