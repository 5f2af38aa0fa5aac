"""Words that take a full stop without ending a sentence, in several languages at once: a text has no language here.

Case does not matter; the words have no stop. Single letters, letters with stops between them (e.g., z.B., U.S.) and the
numbers of lists need no entry: `sentences` has rules for them. A missing word causes a wrong pause. A word of these
lists may hide a boundary, so an ordinary word of some language is only in a list that asks what follows.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


BEFORE_NAME = _words(
    """
    mr mrs ms messrs dr drs prof rev revd fr hon pres gov sen rep gen lt col cpt capt cmdr cdr sgt cpl pvt maj brig adm
    insp supt st mt vs viz cf
    hr hrn frl gebr dipl ing hrsg ca ggf bzw bspw evtl vgl sog inkl exkl einschl zzgl abzgl betr insb allg versch
    mm mme mmes mlle mlles mgr pr ste env éts ets av bd boul pl fg rte
    sr srs sra sras sres srta sto dra dras dña exmo exma ilmo ilma ud uds vd vds lic arq profa mtro mtra gral cnel tte
    sgto avda ctra pza pje ej ee eng enga pça lgo
    sig sigg sig.ra sig.na dott dott.ssa dr.ssa prof.ssa avv geom egr spett mons p.zza p.le c.so v.le l.go
    г-н г-жа проф акад доц инж тов гр св ул пл пер наб просп пр-т обл напр
    dhr mevr mw jhr bijv resp evt excl incl
    ul inż ks św płk ppłk mjr kpt zob np tzw tj m.in
    """
)
"""Never the end of a sentence: titles, streets that stand before their names, and words that introduce something."""

MAYBE = _words(
    """
    etc inc ltd co corp bros llc plc jr esq dept univ ave blvd rd hwy al ed a.m p.m ph.d b.c a.d ft yd oz lb lbs hrs tsp
    tbsp mph
    usw usf ff str gmbh hbf mio mrd tsd jh jhdt chr geb gest fa mind
    cie hab cía uu cia ltda ecc mln mld sta rag arch
    им ген др пр гг вв см ср руб коп долл тыс млн млрд трлн чел
    ir enz itd itp tys zł os
    """
)
"""The end of a sentence only if a word of `STARTS` follows. A word that ends in `str` is one, too: Lindenstr."""

STARTS = _words(
    """
    the a an i he she it we they you this that these those there then but and so if when while what who where why how in
    on at for from to my your his her its our their as after before now here yes no not let please do did is are was
    der die das ein eine er sie es wir ihr ich du dies diese dieser dieses und aber wenn dann da hier nun jetzt im am ja
    nein auch doch sein ihre man wer was wie wo
    le la les l un une je j il elle on nous vous ils elles ce c cet cette ces mais et si quand puis alors oui non dans
    el yo él ella nosotros ellos ellas usted ustedes este esta eso ese esa esto y pero cuando en es era fue luego
    después también ahora sí
    o os as um uma eu ele ela nós eles elas você vocês isso isto e mas se quando não em é foi depois também agora sim
    lo gli i io lui lei noi loro questo questa quello ma poi è ora sì
    он она оно они мы вы я ты это этот эта эти и но а если когда потом тут там в на не да нет что кто как где
    de het een ik jij hij zij ze wij dit dat en maar als daar nu ja nee
    to ten ta te on ona oni my wy ja ty ale jeśli kiedy potem tu tam w na nie tak
    """
)
"""Short words with which sentences begin and names hardly do."""

BEFORE_NUMBER = _words(
    """
    no nos nr nrs num núm n° nº pp pg approx aprox circa tel tél тел max min máx mín op ver pos lfd est ext
    hausnr godz bde aufl réf кв корп
    jan feb mar apr jun jul aug sep sept oct okt nov dec dez janv févr avr juil déc ene abr dic fev янв фев апр авг сен
    сент окт ноя дек
    """
)
"""Not the end of a sentence if a number follows."""

BEFORE_LABEL = _words(
    """
    fig figs eq eqs vol vols ch chap sec sect art arts par ex apt rm bldg tbl pt
    postf abb tab kap ziff abs abschn anh
    pgs pág págs pag pagg cap ap apto bl appt bât
    рис табл гл стр
    afb blz hfdst rys rozdz
    """
)
"""Not the end of a sentence if a number or a single letter follows: Fig. A, Vol. II."""

BEFORE_DATE = _words("mon tue tues wed weds thu thur thurs fri sat sun")
"""Not the end of a sentence if a number or a word of `DATES` follows: Wed. March 3."""

DATES = BEFORE_DATE | _words(
    """
    january february march april may june july august september october november december
    jan feb mar apr jun jul aug sep sept oct nov dec
    monday tuesday wednesday thursday friday saturday sunday
    """
)
"""Months and days."""

BEFORE_ORDINAL = _words(
    """
    der die das den dem des ein eine einen einem einer eines am im vom zum zur beim ab bis seit und
    jeder jede jedes jeden jedem dieser diese dieses diesem diesen
    ihr ihre ihrem ihren sein seine seinem seinen mein meine meinem meinen
    """
)
"""Before a number of one or two digits whose stop makes it an ordinal, as German writes them."""

ABBREVIATIONS = BEFORE_NAME | MAYBE | BEFORE_NUMBER | BEFORE_LABEL | BEFORE_DATE
"""All words that take a stop."""
