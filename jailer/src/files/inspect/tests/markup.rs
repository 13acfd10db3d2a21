//! SVG and HTML.

use super::*;

#[test]
fn active_content_of_svg_and_html_is_flagged() {
    let svg = |body: &str| look("image/svg+xml", format!("<?xml version=\"1.0\"?><svg>{body}</svg>")).flags;
    assert_eq!(svg("<script>1</script>"), [Flag::Script]);
    assert_eq!(svg("<x:SCRIPT\n/>"), [Flag::Script]);
    assert_eq!(
        svg("<a xlink:href=' java&#x73;cript&colon;alert(1)'>x</a>"),
        [Flag::Script, Flag::ExternalReference]
    );
    assert_eq!(svg("<set attributeName='href' to='javascript:1'/>"), [Flag::Script]);
    assert_eq!(
        svg("<a href='javascript&#58alert(1)'>x</a>"),
        [Flag::Script, Flag::ExternalReference]
    );
    assert_eq!(svg("<g onclick=alert(1)>"), [Flag::EventHandler]);
    assert_eq!(svg("<g class=a/onload='x'/>"), [Flag::EventHandler]);
    assert_eq!(svg("<g class='a'onload='x'/>"), [Flag::EventHandler]);
    assert_eq!(svg("<foreignObject/>"), [Flag::ForeignObject]);
    assert_eq!(svg("<image href='//host/x.png'/>"), [Flag::ExternalReference]);
    assert_eq!(svg("<use href='#a'/><image href='data:image/png;base64,AA=='/>"), []);
    assert_eq!(
        svg("<rect fill='url(#g)' style='fill: url(\"http://host/\")'/>"),
        [Flag::ExternalReference]
    );
    assert_eq!(svg("<style>@import 'x.css';</style>"), [Flag::ExternalReference]);
    assert_eq!(
        svg(&format!("<style>{}</style>", "a{}".repeat(3000) + "b{c:url(http://h)}")),
        [Flag::ExternalReference]
    );
    assert_eq!(
        svg("<!-- a > b --><text>on = 'x' href, one = 2</text><![CDATA[x > y]]>"),
        []
    );
    assert_eq!(svg("<!ENTITY x 'y'>"), [Flag::Entity]);
    let html = look(
        "text/html",
        "<!DOCTYPE html><iframe src=http://h></iframe><p onmouseover=\"x\">",
    );
    assert_eq!(
        html.flags,
        [Flag::EventHandler, Flag::ForeignObject, Flag::ExternalReference]
    );
}

#[test]
fn an_svg_tells_its_size_and_must_be_one() {
    let svg = |attributes: &str| {
        look(
            "image/svg+xml",
            format!("<!-- x --><svg {attributes}><rect width='9'/></svg>"),
        )
    };
    let sized = |width, height| {
        let mut seen = valid(&[]);
        seen.word("encoding", "ascii");
        seen.number("width", width);
        seen.number("height", height);
        seen
    };
    let namespaces = "xmlns='http://www.w3.org/2000/svg' xmlns:xlink='http://www.w3.org/1999/xlink'";
    assert_eq!(
        svg(&format!("{namespaces} width=\"460.8pt\" height='345.6pt'")),
        sized(460, 345)
    );
    assert_eq!(svg("width='100%' height='100%' viewBox='0 0 640,480'"), sized(640, 480));
    assert_eq!(
        problem(&look("image/svg+xml", "<html></html>")),
        Some("the first element is not svg")
    );
    assert_eq!(problem(&look("image/svg+xml", b"<svg>\xff</svg>")), Some("not UTF-8"));
}

#[test]
fn what_readers_disagree_about_hides_nothing() {
    let svg = |body: &str| look("image/svg+xml", format!("<svg>{body}</svg>")).flags;
    for hidden in [
        "<![CDATA[<!--]]><script>alert(1)</script><!-- -->",
        "<!--><script>alert(1)</script>-->",
        "<!-- --!><script>alert(1)</script>-->",
        "<!-- <a b=' --><script>alert(1)</script><!-- ' -->",
        "<?x ><a b='?><script>alert(1)</script><a b=''/>",
        "<style><!-- </style><script>alert(1)</script> --></style>",
        "<title><!-- </title><script>alert(1)</script> --></title>",
        "<a b='<script>'/>",
    ] {
        assert!(svg(hidden).contains(&Flag::Script), "{hidden}");
    }
    assert_eq!(svg("<!--><g onload =x>-->"), [Flag::EventHandler]);
    assert_eq!(svg("<!--><g b=\">\" onload=x>-->"), [Flag::EventHandler]);
    assert_eq!(svg("<!--><x:foreignObject>-->"), [Flag::ForeignObject]);
}

#[test]
fn what_lies_beyond_what_is_kept_is_not_trusted() {
    let svg = |body: &str| look("image/svg+xml", format!("<svg>{body}</svg>")).flags;
    let long = " ".repeat(5000);
    let name = "x".repeat(5000);
    assert_eq!(svg(&format!("<a href='{long}javascript:x'/>"))[0], Flag::Script);
    assert_eq!(
        svg(&format!("<a href='{}script:x'/>", "java&#10;".repeat(600)))[0],
        Flag::Script
    );
    assert_eq!(
        svg(&format!("<a href='data:image/png;base64,{name}'/><path d='{name}'/>")),
        []
    );
    assert_eq!(svg(&format!("<{name}:script/>")), [Flag::Script]);
    assert_eq!(svg(&format!("<g {name}='x'/>")), [Flag::EventHandler]);
    let padded = look(
        "image/svg+xml",
        format!("<!DOCTYPE svg [{long}<!ENTITY a 'b'>]><svg>&a;</svg>"),
    );
    assert_eq!(padded.flags, [Flag::Entity]);
    let split = look(
        "image/svg+xml",
        format!("<!DOCTYPE {long}svg [<!ENTITY a 'b'>]><svg>&a;</svg>"),
    );
    assert_eq!(split.flags, [Flag::Entity]);
}

#[test]
fn entities_document_types_and_encodings_are_told() {
    let svg = |start: &str| look("image/svg+xml", format!("{start}<svg/>")).flags;
    let w3 = "<!DOCTYPE svg PUBLIC \"-//W3C//DTD SVG 1.1//EN\" \"http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd\">";
    assert_eq!(svg(w3), []);
    assert_eq!(svg("<!DOCTYPE svg>"), []);
    for outside in [
        "<!DOCTYPE svg SYSTEM \"x.dtd\">",
        "<!DOCTYPE svg PUBLIC \"x\" \"http://host/x.dtd\">",
        "<!DOCTYPE svg PUBLIC \"http://www.w3.org/\" \"http://host/x.dtd\">",
        "<!DOCTYPE svg PUBLIC \"x\" \"/etc/passwd\">",
        "<?xml-stylesheet href='x.css'?>",
    ] {
        assert_eq!(svg(outside), [Flag::ExternalReference], "{outside}");
    }
    for entities in [
        "<!DOCTYPE svg [<!ENTITY % a SYSTEM 'x'>]>",
        "<!DOCTYPE svg [ %a; ]>",
        "<?xml version='1.0' encoding='ISO-2022-JP'?>",
        "<?xml version='1.0' encoding = \"utf-7\"?>",
    ] {
        assert!(svg(entities).contains(&Flag::Entity), "{entities}");
    }
    assert_eq!(svg("<?xml version='1.0' encoding='UTF-8' standalone='no'?>"), []);
}

#[test]
fn what_is_loaded_from_elsewhere_is_told_however_it_is_written() {
    let svg = |body: &str| look("image/svg+xml", format!("<svg>{body}</svg>")).flags;
    for outside in [
        "<image href='x.png'/>",
        "<use xlink:href='other.svg#a'/>",
        "<g xml:base='http://h/'/>",
        "<style>a{b:u\\72l(http://h)}</style>",
        "<style>&#64;import 'x'</style>",
        "<style><![CDATA[@import 'x']]></style>",
        "<g fill='u\\72l(http://h)'/>",
        "<g style='background:image-set(\"http://h\" 1x)'/>",
        "<animate values='//h/x;//h/y'/>",
        "<link/>",
    ] {
        assert_eq!(svg(outside), [Flag::ExternalReference], "{outside}");
    }
    assert_eq!(svg("<style>a{b:url(#c)}</style><text>a\\b &amp; c</text>"), []);
    assert_eq!(svg("<use href='data:image/svg+xml,x'/>"), [Flag::Script]);
}

#[test]
fn a_drawing_as_matplotlib_writes_it_is_calm() {
    let drawing = "<?xml version=\"1.0\" encoding=\"utf-8\" standalone=\"no\"?>\n<!DOCTYPE svg PUBLIC \"-//W3C//DTD SVG 1.1//EN\"\n  \
        \"http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd\">\n<svg xmlns:xlink=\"http://www.w3.org/1999/xlink\" width=\"460.8pt\" height=\"345.6pt\" \
        viewBox=\"0 0 460.8 345.6\" xmlns=\"http://www.w3.org/2000/svg\" version=\"1.1\">\n <metadata>\n  <rdf:RDF \
        xmlns:dc=\"http://purl.org/dc/elements/1.1/\" xmlns:rdf=\"http://www.w3.org/1999/02/22-rdf-syntax-ns#\">\n   <cc:Work>\n    \
        <dc:type rdf:resource=\"http://purl.org/dc/dcmitype/StillImage\"/>\n    <dc:title>Matplotlib v3.9.0, https://matplotlib.org/</dc:title>\n \
        </cc:Work></rdf:RDF></metadata>\n <defs>\n  <style type=\"text/css\">*{stroke-linejoin: round; stroke-linecap: butt}</style>\n </defs>\n \
        <g id=\"text_1\">\n <!-- one = 2, only > others -->\n <g transform=\"translate(8.5 9)\"><use xlink:href=\"#DejaVuSans-31\"/></g></g>\n \
        <path clip-path=\"url(#p1)\" style=\"fill: none; stroke: #1f77b4\"/>\n <image xlink:href=\"data:image/png;base64,\niVBORw0KGgo\"/></svg>";
    let seen = look("image/svg+xml", drawing);
    assert_eq!((seen.verdict, seen.flags), (Verdict::Valid, vec![]));
}
