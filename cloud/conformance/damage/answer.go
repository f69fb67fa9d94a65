// SPDX-License-Identifier: Apache-2.0

package damage

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
)

// nested is deeper than decoders accept.
const nested = 20_000

// damaged returns an answer with damage. Most damage is in the document that the body is.
func damaged(r *rand.Rand, a answer) answer {
	switch r.IntN(12) {
	case 0:
		a.status = one(r, statuses)
	case 1:
		h := one(r, headers)
		a.header.Set(h[0], h[1])
	case 2:
		if names := sortedKeys(a.header); len(names) > 0 {
			a.header.Del(one(r, names))
		}
	case 3:
		if len(a.body) > 0 {
			a.body = a.body[:r.IntN(len(a.body))]
		}
	case 4:
		a.body = slices.Clone(a.body)
		for range 1 + r.IntN(8) {
			if len(a.body) > 0 {
				a.body[r.IntN(len(a.body))] = byte(r.IntN(256))
			}
		}
	case 5:
		a.body = []byte(one(r, bodies)())
	}
	switch trimmed := bytes.TrimSpace(a.body); {
	case len(trimmed) == 0:
	case trimmed[0] == '{', trimmed[0] == '[':
		a.body = damagedJSON(r, a.body)
	case trimmed[0] == '<':
		a.body = damagedXML(r, a.body)
	}
	return a
}

// one returns one of many.
func one[T any](r *rand.Rand, of []T) T { return of[r.IntN(len(of))] }

var statuses = []int{200, 200, 201, 202, 204, 206, 301, 304, 307, 400, 401, 403, 404, 409, 410, 412, 413, 422, 429, 500, 502, 503, 504,
	599, 999}

var headers = [][2]string{
	{"Retry-After", "-1"},
	{"Retry-After", "99999999999999999999"},
	{"Retry-After", "Mon, 02 Jan 0000 00:00:00 GMT"},
	{"Retry-After", "1e3"},
	{"Content-Type", ""},
	{"Content-Type", "text/html"},
	{"Content-Type", "application/json; charset=\x00"},
	{"Content-Type", ";;;"},
	{"Content-Encoding", "gzip"},
	{"Location", "http://169.254.169.254/"},
	{"Location", "::"},
	{"Location", ""},
	{"Azure-AsyncOperation", "x"},
	{"Azure-AsyncOperation", "https://%zz"},
	{"Date", "x"},
	{"Date", "Mon, 02 Jan 2036 15:04:05 GMT"},
	{"X-Subject-Token", ""},
	{"Set-Cookie", "vmware_soap_session=; Max-Age=-1"},
	{"Vmware-Api-Session-Id", ""},
	{"X-Ms-Ratelimit-Remaining-Resource", ";;;=,"},
	{"X-Ms-Ratelimit-Remaining-Resource", "a;-99999999999999999999"},
	{"X-Ms-Error-Code", strings.Repeat("x", 5000)},
	{"Openstack-Api-Version", "compute 99999999.1"},
	{"X-Openstack-Request-Id", strings.Repeat("r", 4000)},
}

// bodies are bodies that replace a whole one.
var bodies = []func() string{
	text(""), text("null"), text("[]"), text("{}"), text(`""`), text("0"), text("<a/>"), text("<html>"), text("[null]"),
	text(`{"items":[null]}`), text(`{"value":[null]}`),
	func() string { return strings.Repeat("[", nested) + strings.Repeat("]", nested) },
	func() string { return strings.Repeat(`{"items":`, nested) + "0" + strings.Repeat("}", nested) },
	func() string { return strings.Repeat("<a>", nested) + strings.Repeat("</a>", nested) },
}

func text(s string) func() string { return func() string { return s } }
