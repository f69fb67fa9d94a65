// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"encoding/xml"
	"errors"
	"strings"
	"testing"
)

func scanXML(text string) (s XML, err error) {
	for i := range len(text) {
		if err := s.Next(text[i]); err != nil {
			return s, err
		}
	}
	return s, nil
}

func TestXML(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]XML{
		`<?xml version="1.0"?><a><item/><item>x</item ><member a='1' b = "2"/><items/></a>`: {Elements: 5, Items: 3, Repeated: 1, Attributes: 3,
			Marks: 1},
		`<s:a xmlns:s="u"><s:item><itemSet></itemSet></s:item></s:a>`: {Elements: 3, Items: 1, Attributes: 1},
		`<a><!-- <item> --><b><![CDATA[<item>]]></b></a>`:             {Elements: 4, Items: 2, Marks: 2},
		`<a><b><c/></b><d><c/></d><n:b><c/><d/><c></c></n:b><b/></a>`: {Elements: 10, Repeated: 3},
		"not XML": {},
	} {
		got, err := scanXML(text)
		if err != nil || got.Elements != want.Elements || got.Items != want.Items || got.Repeated != max(want.Repeated, want.Items/3) ||
			got.Attributes != want.Attributes || got.Marks != want.Marks {
			t.Errorf("%s: %v, %+v; want %+v", text, err, got, want)
		}
	}
	flat, err := scanXML("<a>" + strings.Repeat("<b/><c></c>", MaxDepth) + "</a>")
	if err != nil || flat.Elements != 2*MaxDepth+1 {
		t.Errorf("siblings: %v, %d elements", err, flat.Elements)
	}
	if _, err := scanXML(strings.Repeat("<b>", MaxDepth+1)); !errors.Is(err, ErrDepth) {
		t.Errorf("a text that is nested too deep: %v", err)
	}
}

// FuzzXML compares the scanner with encoding/xml: it never counts less.
func FuzzXML(f *testing.F) {
	for _, seed := range []string{
		`<a b="c"><item/><x:item y='>'></x:item><!-- < --><![CDATA[<]]>text</a>`, `<a b=">" c="'"/>`, `<a><!-- <b ' --><item b="" c=""/></a>`,
		`<?p a="b"?><!D [<!E>]><a/>`,
		`<a b = "<x '" c="" d="">`, `x<item`, `<a/>b<c/>`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := scanXML(string(data))
		if err != nil {
			return
		}
		var elements, items, attributes int64
		for decoder := xml.NewDecoder(strings.NewReader(string(data))); ; {
			token, err := decoder.Token()
			if err != nil {
				break
			}
			if start, is := token.(xml.StartElement); is {
				elements++
				attributes += int64(len(start.Attr))
				if start.Name.Local == "item" || start.Name.Local == "member" {
					items++
				}
			}
		}
		if s.Elements < elements || s.Items < items || s.Attributes < attributes {
			t.Fatalf("%q: %d elements (at least %d), %d items (at least %d), %d attributes (at least %d)",
				data, s.Elements, elements, s.Items, items, s.Attributes, attributes)
		}
	})
}
