"""The words of the training sentences, by their part in a sentence. Common English words, listed by hand."""

from __future__ import annotations

PEOPLE = """
actor artist aunt baby baker boy brother captain chef child coach cook cousin dancer daughter dentist doctor driver
engineer farmer father fisherman friend gardener girl grandfather grandmother guard guest hunter judge king lady lawyer
leader man manager mayor mother musician neighbor nurse officer owner painter parent pilot player poet policeman
president prince princess professor queen sailor scientist secretary singer sister soldier son speaker stranger student
tailor teacher teenager tourist traveler uncle visitor waiter woman worker writer
""".split()

ANIMALS = """
ant bear bee bird bull butterfly camel cat chicken cow crow deer dog donkey dolphin duck eagle elephant fish fly fox
frog goat goose hen horse kitten lamb lion lizard monkey mouse owl panda parrot pig pigeon pony puppy rabbit rat rooster
shark sheep snake spider squirrel swan tiger turkey turtle whale wolf worm zebra
""".split()

THINGS = """
apple arm arrow bag ball balloon banana basket bean bed bell belt bicycle blanket board boat bone book boot bottle bowl
box bread brick broom brush bucket bus button cable cake calendar camera candle candy cap car card carpet carrot chain
chair chalk cheese clock cloth cloud coat coffee coin collar computer cookie corn cotton cradle cream crown cup curtain
desk diamond dinner dish doll door drawer dress drum ear egg engine envelope eye face fan feather fence finger fire flag
floor flower folder food foot fork fruit game gate gift glass glove gold grape grass guitar hammer hand hat head heart
helmet honey hook hose ice iron jacket jar jewel juice key kettle knife ladder lamp leaf leather lemon letter light lock
machine magazine map mask match meal meat medicine melon message milk mirror money moon motor mountain mouth movie
mushroom nail neck needle newspaper nose note number nut onion orange oven paint pan paper peach pear pen pencil pepper
phone piano picture pie pill pillow pipe plane plant plate pocket pot potato present purse puzzle radio rain record ring
rock roof rope rose rug salad salt sandwich saw scarf screen seed shadow sheet shell ship shirt shoe shoulder sign silk
silver skirt snow soap sock sofa song soup spoon stamp star stick stone story stove strawberry string suitcase sugar sun
sweater sword table tea telephone tent test thumb ticket tie toe tomato tool tooth towel toy train tray treasure tree
truck trumpet umbrella van vase vegetable video violin wagon wall wallet watch water wheel whistle wind window wine wing
wire wood wool
""".split()

PLACES = """
airport attic bakery balcony bank barn bathroom beach bedroom bridge building cabin castle cave cellar center church
city classroom college corner country court desert factory farm field forest garage garden hall harbor hill hospital
hotel house island jail kitchen lake library market meadow museum office palace park path playground pond pool port
porch restaurant river road room school shop shore square stable stadium stage station store street studio theater tower
town tunnel university valley village yard zoo
""".split()

ABSTRACT = """
accident advice age anger answer art beauty business chance change choice class color comfort danger date death decision
difference dream duty education effort energy error event evening example exercise experience fact fear feeling future
goal government group habit happiness health history holiday hope hour idea information interest job joke journey joy
knowledge language law lesson life list love luck market meeting memory mind minute mistake moment month morning music
nature news night noise opinion pain party peace plan power price prize problem promise question reason report result
rule season secret silence size sleep smile sound speed sport summer surprise system taste thought time trade tradition
travel trip trouble trust truth vacation view visit voice war way weather week weekend winter word work world year
""".split()

ADJECTIVES = """
able angry bad beautiful big bitter black blue bold brave bright broken brown busy calm careful cheap clean clear clever
cold cool common correct crazy cruel curious dangerous dark dear deep different difficult dirty dry dull dusty early
easy empty expensive fair famous fancy fast fat final fine flat foolish free fresh friendly full funny gentle giant glad
golden good grand gray great green happy hard healthy heavy high honest hot huge hungry important innocent interesting
kind large late lazy light little local lonely long loose loud lovely low lucky mad main modern narrow nervous new nice
noisy old open orange ordinary perfect pink plain pleasant polite poor popular pretty private proud public pure purple
quick quiet rare ready real red rich right rough round royal rude sad safe secret serious shallow sharp short shy sick
silent silly silver simple slow small smart smooth soft sour special square steep still strange strong stupid sudden
sweet tall tasty terrible thick thin tiny tired true ugly unhappy useful usual warm weak wet white whole wide wild wise
wonderful wooden wrong yellow young
""".split()

# Regular verbs that take an object, and those that take none; irregular ones with their past and participle.
TRANSITIVE = """
accept add admire allow answer ask attack avoid bake blame borrow brush call carry change chase check choose clean close
collect color compare complete cook copy count cover cross dance deliver describe destroy discover discuss divide drop
enjoy enter examine expect explain fill finish fix follow guess help hurry ignore imagine improve invite join kick kiss
learn lift like lock love mark measure miss mix move name need notice offer open order own pack paint pass pick plant
play please point prepare press print promise protect pull push raise reach receive remember remove rent repair
repeat replace report return save serve share shout sign start stop study surprise taste test thank touch trade train
trust try turn use visit want warn wash watch wish wrap
""".split()

INTRANSITIVE = """
appear arrive behave bow climb cough cry dance die disappear fail float happen hurry jump laugh listen live look march
move pause play rest return sail scream shine shout smile stay step stop study swim talk travel wait walk wander
whisper work worry
""".split()

IRREGULAR_TRANSITIVE = {
    verb: (past, participle)
    for verb, past, participle in (
        line.split()
        for line in """
        beat beat beaten
        bite bit bitten
        break broke broken
        bring brought brought
        build built built
        burn burned burned
        buy bought bought
        catch caught caught
        choose chose chosen
        cut cut cut
        draw drew drawn
        drink drank drunk
        drive drove driven
        eat ate eaten
        feed fed fed
        feel felt felt
        find found found
        forget forgot forgotten
        give gave given
        hear heard heard
        hide hid hidden
        hit hit hit
        hold held held
        keep kept kept
        know knew known
        lead led led
        leave left left
        lose lost lost
        make made made
        meet met met
        pay paid paid
        put put put
        read read read
        ride rode ridden
        ring rang rung
        see saw seen
        sell sold sold
        send sent sent
        show showed shown
        sing sang sung
        steal stole stolen
        take took taken
        teach taught taught
        tell told told
        throw threw thrown
        understand understood understood
        wear wore worn
        win won won
        write wrote written
        """.strip().splitlines()
    )
}

IRREGULAR_INTRANSITIVE = {
    verb: (past, participle)
    for verb, past, participle in (
        line.split()
        for line in """
        come came come
        fall fell fallen
        fly flew flown
        go went gone
        lie lay lain
        run ran run
        shine shone shone
        sit sat sat
        sleep slept slept
        speak spoke spoken
        stand stood stood
        swim swam swum
        """.strip().splitlines()
    )
}

NAMES = """
Adam Alice Amy Andrew Anna Anthony Arthur Ben Betty Bill Bob Carl Carol Charles Charlie Chris Daniel David Diana Edward
Ellen Emily Emma Frank Fred George Grace Harry Helen Henry Jack Jacob James Jane Jenny Jim Joan Joe John Julia Kate
Kevin Laura Linda Lisa Lucy Maria Mark Martha Martin Mary Max Michael Mike Molly Nancy Nick Oliver Oscar Patrick Paul
Peter Rachel Rebecca Richard Robert Robin Roger Rose Ruth Sally Sam Sandra Sarah Simon Sophie Steve Susan Ted Thomas Tim
Tom Victor Walter William
""".split()

CITIES = """
America Berlin Boston Canada Chicago China England Europe France Germany India Ireland Italy Japan London Mexico Moscow
Paris Rome Russia Spain Texas Tokyo Washington
""".split()

NUMBERS = """
one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen twenty thirty forty fifty sixty seventy eighty ninety
""".split()

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()

MANNER = """
again alone badly calmly carefully clearly closely easily exactly finally gently gladly happily hard heavily honestly
kindly lightly loudly nicely often openly patiently perfectly politely proudly quickly quietly rarely really sadly
safely secretly seldom silently simply slowly softly strangely suddenly together well wildly
""".split()

TIMES = """
yesterday today tomorrow tonight now then soon later always once twice every|day every|morning every|night last|night
last|week last|year next|week next|month next|year this|morning this|evening at|night at|noon at|once before|dinner
after|school after|lunch in|the|morning in|the|evening in|the|winter in|the|summer on|the|weekend a|long|time|ago
all|day all|night for|an|hour for|a|while right|away one|day some|day
""".split()
TIMES = [time.replace("|", " ") for time in TIMES]

PREPOSITIONS = """
about above across against along among around behind below beside between by from in inside into near off on onto out|of
outside over past through to toward under upon with without
""".split()
PREPOSITIONS = [word.replace("|", " ") for word in PREPOSITIONS]
