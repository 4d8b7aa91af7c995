"""Words that say nothing about a text, but for its language. Folded: small, with straight `'`."""

# ruff: noqa: RUF001  # Russian letters are meant

from __future__ import annotations

_WORDS = {
    "english": """
        a about above after again against all am an and any are aren't as at be because been before
        being below between both but by can can't cannot could couldn't did didn't do does doesn't
        doing don't down during each few for from further had hadn't has hasn't have haven't having
        he he'd he'll he's her here here's hers herself him himself his how how's i i'd i'll i'm
        i've if in into is isn't it it'd it'll it's its itself just let's me more most my myself no
        nor not now of off on once only or other our ours ourselves out over own same she she'd
        she'll she's should shouldn't so some such than that that's the their theirs them themselves
        then there there's these they they'd they'll they're they've this those through to too under
        until up very was wasn't we we'd we'll we're we've were weren't what what's when when's
        where where's which while who who's whom whose why why's will with won't would wouldn't you
        you'd you'll you're you've your yours yourself yourselves""",
    "german": """
        aber alle allem allen aller alles als also am an ander andere anderem anderen anderer
        anderes auch auf aus bei beim bin bis bist da damit dann das dass dasselbe dazu dein deine
        deinem deinen deiner deines dem den denn der des dessen dich die dies diese diesem diesen
        dieser dieses dir doch dort du durch ein eine einem einen einer eines einig einige einigem
        einigen einiger einiges er es etwas euch euer eure eurem euren eurer für gegen hab habe
        haben hat hatte hatten hier hin hinter ich ihm ihn ihnen ihr ihre ihrem ihren ihrer ihres im
        in indem ins ist ja jede jedem jeden jeder jedes jene jenem jenen jener jenes jetzt kann
        kein keine keinem keinen keiner keines können könnte man mein meine meinem meinen meiner
        meines mich mir mit muss musste nach nicht nichts noch nun nur ob oder ohne sehr sein seine
        seinem seinen seiner seines selbst sich sie sind so solche solchem solchen solcher solches
        soll sollte sondern sonst über um und uns unser unsere unserem unseren unserer unter viel
        vom von vor während war waren warst was weg weil weiter welche welchem welchen welcher
        welches wenn werde werden wie wieder will wir wird wirst wo wollen wollte wurde wurden würde
        würden zu zum zur zwar zwischen""",
    "french": """
        à ai aie aient as au aura aurait aussi autre aux avaient avais avait avec avez avoir avons
        ayant bien c'est ce ceci cela celle celles celui ces cet cette ceux chez comme comment d
        dans de depuis des dont du elle elles en encore es est et étaient étais était étant été
        êtes être eu eux fait furent fut il ils j je l la là le les leur leurs lui m ma mais me même
        mes moi mon n ne ni nos notre nous on ont ou où par pas plus pour pourquoi qu quand que quel
        quelle quelles quels qui s sa sans se sera serait ses si son sont sous suis sur t ta te tes
        toi ton tous tout toute toutes très tu un une vos votre vous y""",
    "spanish": """
        a al algo algunas algunos ante antes aquel aquella así aunque cada como con contra cual
        cuando cómo de del desde donde dónde dos durante e el él ella ellas ellos en entre era eran
        es esa esas ese eso esos esta está estaba están estar estas este esto estos estoy fue fueron
        ha había habían hacia han hasta hay he la las le les lo los más me mi mí mientras mis mucho
        muy nada ni no nos nosotros nuestra nuestro o os otra otras otro otros para pero poco por
        porque pues que qué quien quién se sea ser si sí sido sin sobre son soy su sus también tan
        tanto te tengo ti tiene todo todos tu tú tus un una uno unos usted y ya yo""",
    "italian": """
        a ad agli ai al alla alle allo anche ancora avere aveva avevano c che chi ci ciò come con
        contro così cui da dagli dai dal dalla dalle dallo degli dei del dell della delle dello
        dentro di dopo dove e è ed era erano essere fra gli ha hai hanno ho i il in io l la le lei
        li lo loro lui ma me mi mia mie miei mio molto ne negli nei nel nella nelle nello no noi non
        nostra nostro o ogni per perché più poi può qua quale quando quanto quella quelle quelli
        quello questa queste questi questo qui sarà se sei senza si sì sia siamo siete sono sopra
        sotto sta stata stato su sua sue sugli sui sul sulla sulle sullo suo suoi te ti tra tu tua
        tue tuo tutti tutto un una uno vi voi vostra vostro""",
    "portuguese": """
        a à ao aos aquela aquelas aquele aqueles aquilo as às até com como contra da das de dela
        dele deles depois do dos e é ela elas ele eles em entre era eram essa essas esse esses esta
        está estão estas estava este estes eu foi foram for há isso isto já lhe lhes mais mas me
        mesmo meu meus minha minhas muito na não nas nem no nos nós nossa nosso num numa o onde os
        ou para pela pelas pelo pelos por porque quando que quem são se sem ser seu seus só sobre
        sua suas também te tem têm tenho ter teu tinha toda todas todo todos tu tua tudo um uma você
        vocês vos""",
    "dutch": """
        aan al alles als altijd andere ben bij bijna daar dan dat de der deze die dit doch doen door
        dus een eens en er ge geen geweest haar had hadden heb hebben heeft hem het hier hij hoe hun
        iemand iets ik in is ja je jij jou jouw kan kon kunnen maar me meer men met mij mijn moet na
        naar niet niets nog nu of om omdat onder ons ook op over reeds te tegen toch toen tot u uit
        uw van veel voor waar waarom want waren was wat we wel werd werden wezen wie wij wil worden
        wordt zal ze zei zelf zich zij zijn zo zonder zou""",
    "swedish": """
        alla allt att av blev bli blir då där de dem den denna deras dess det detta dig din dina
        ditt du efter ej eller en er era ert ett för från ha hade han hans har hon honom hur i icke
        ingen inom inte jag ju kan kunde man med mellan men mig min mina mitt mot mycket när någon
        något några ni nu och om oss på så sådan sig sin sina sitt själv ska skulle som till under
        upp ut utan vad var vara varför varit vår våra vem vi vid vilka vilken är över""",
    "danish": """
        ad af alle alt anden at blev blive bliver da de dem den denne der deres det dette dig din
        disse dog du efter eller en end er et for fra ham han hans har havde have hende hendes her
        hos hun hvad hvem hvis hvor i ikke ind jeg jer jo kunne man mange med meget men mig min mine
        mit mod ned noget nogle nu når og også om op os over på selv sig sin sine skal skulle som
        sådan thi til ud under var vi vil ville vor være været""",
    "norwegian": """
        alle at av bare begge ble bli blir da de deg dem den denne der deres det dette din disse du
        eller en enn er et etter for fordi fra før ha hadde han hans har henne hennes her hun hva
        hvem hver hvis hvor hvorfor i ikke ingen inn jeg kan kom kunne man mange med meg meget
        mellom men min mitt mot må ned noe noen nå når og også om opp oss over på seg selv sin sitt
        skal skulle slik som til um under ut uten var ved vi vil ville vår være vært""",
    "polish": """
        a aby ale ani aż bardzo bez bo bowiem był była było były być ci co czy czyli dla do gdy
        gdyż gdzie go i ich im ja jak jako je jednak jego jej jemu jest jestem jeszcze jeśli już ją
        kiedy która które którego której który których którzy lub ma mi mnie mną może mu my na nad
        nam nas nasz nic nich nie niego niej nim o od on ona one oni ono oraz po pod ponieważ przed
        przez przy się są ta tak także tam te tego tej ten to tu tutaj tych tylko tym u w we wam was
        więc wszystko z za ze że żeby""",
    "russian": """
        а без более больше бы был была были было быть в вам вас весь во вот все всего всех вы где да
        даже для до его ее её если есть еще ещё же за здесь и из или им их к как какая какой когда
        кто ли либо мне может мой моя мы на над надо нас не него нее неё нет ни них но ну о об он
        она они оно от очень по под после потом потому при про раз с сам свой своя себе себя сейчас
        со так такой там тебя тем теперь то тогда того тоже только том тот ты у уже хотя чего чем
        что чтобы эта эти это этого этой этом этот я""",
}

STOP_WORDS: dict[str, frozenset[str]] = {
    language: frozenset(words.split()) for language, words in _WORDS.items()
}
"""By Snowball's names of the languages, of which Latin letters write all but Russian."""

ELIDED = frozenset(
    "c d j l m n s t qu jusqu lorsqu puisqu all dall dell nell sull un quest".split()  # noqa: SIM905  one name a line would say no more
)
"""What French and Italian put in front of a word, with `'` between: the word is what counts."""
