// SPDX-License-Identifier: Apache-2.0

package damage

import (
	"bytes"
	"encoding/xml"
	"math/rand/v2"
	"slices"
	"strings"
)

// damagedXML returns an XML document with damage in one to four places.
func damagedXML(r *rand.Rand, text []byte) []byte {
	for range 1 + r.IntN(4) {
		if text = damagedElement(r, text); len(text) > maxDocument {
			break
		}
	}
	return text
}

// element says where an element begins and ends, and what it contains.
type element struct{ begin, inner, innerEnd, end int }

// elements returns all elements of a document, as far as it can be read.
func elements(text []byte) (all []element) {
	decoder := xml.NewDecoder(bytes.NewReader(text))
	decoder.Strict = false
	var open []int
	for {
		before := int(decoder.InputOffset())
		token, err := decoder.RawToken()
		if err != nil {
			break
		}
		switch token.(type) {
		case xml.StartElement:
			all = append(all, element{begin: before, inner: int(decoder.InputOffset())})
			open = append(open, len(all)-1)
		case xml.EndElement:
			if n := len(open); n > 0 {
				e := &all[open[n-1]]
				e.innerEnd, e.end = before, int(decoder.InputOffset())
				open = open[:n-1]
			}
		}
	}
	return slices.DeleteFunc(all, func(e element) bool { return e.end == 0 || e.innerEnd < e.inner })
}

// damagedElement returns a document with damage in one element.
func damagedElement(r *rand.Rand, text []byte) []byte {
	all := elements(text)
	if len(all) == 0 {
		return text
	}
	e, other := one(r, all), one(r, all)
	with := func(from int, what []byte, to int) []byte { return slices.Concat(text[:from], what, text[to:]) }
	whole, tag := text[e.begin:e.end], text[e.begin:e.inner]
	switch r.IntN(8) {
	case 0, 1: // removed
		return with(e.begin, nil, e.end)
	case 2: // empty
		return with(e.inner, nil, e.innerEnd)
	case 3: // with another value
		return with(e.inner, []byte(one(r, values)()), e.innerEnd)
	case 4: // repeated
		return with(e.begin, bytes.Repeat(whole, 1+r.IntN(20)), e.end)
	case 5: // another element
		return with(e.begin, text[other.begin:other.end], e.end)
	case 6: // without its tag
		return with(e.begin, text[e.inner:e.innerEnd], e.end)
	}
	return with(e.begin, ofType(tag, one(r, types)), e.inner)
}

// ofType returns an element's tag with another xsi:type.
func ofType(tag []byte, name string) []byte {
	const attribute = `type="`
	if i := bytes.Index(tag, []byte(attribute)); i > 0 {
		value := tag[i+len(attribute):]
		if j := bytes.IndexByte(value, '"'); j >= 0 {
			return slices.Concat(tag[:i+len(attribute)], []byte(name), value[j:])
		}
	}
	end := bytes.IndexAny(tag, " />")
	if end < 0 {
		return tag
	}
	return slices.Concat(tag[:end], []byte(` xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="`+name+`"`), tag[end:])
}

// types are values of xsi:type: vSphere's own, XML schema's, and one that nobody knows.
var types = []string{
	"xsd:string", "xsd:int", "xsd:boolean", "xsd:dateTime", "ArrayOfString", "ManagedObjectReference", "ArrayOfManagedObjectReference",
	"VirtualMachineConfigInfo", "ArrayOfCustomFieldDef", "ArrayOfOptionValue", "TaskInfo", "VirtualDisk", "LocalizedMethodFault",
	"NotAuthenticated", "Nope",
}

// values are texts that take the place of an element's content.
var values = []func() string{
	text(""), text("x"), text("-1"), text("0"), text("99999999999999999999"), text("true"), text("null"), text("2026-13-45"),
	text("9999-12-31T23:59:59Z"), text("10.0.0.1/33"), text("fe80::1%eth0"), text("<item/>"), text("<item></item><item/>"), text("&#0;"),
	text("vm-1"), text("]]>"), text("/"), text(":"), text("::"), text(strings.Repeat("long", 1000)),
	func() string { return strings.Repeat("<a>", nested) + strings.Repeat("</a>", nested) },
}
