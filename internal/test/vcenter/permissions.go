// SPDX-License-Identifier: Apache-2.0

package vcenter

import (
	"bytes"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"

	"github.com/vmware/govmomi/vim25/types"
)

// Permissions adds permissions to a simulator, which has no privileges. It filters answers as
// vCenter does by what the account's user may see. Hidden objects are in no view, no answer of the
// PropertyCollector and no search, and they leave the update streams that showed them. A privilege
// check reports no privileges on them, and faults for objects that do not exist. Permissions works
// on the wire format.
type Permissions struct {
	// Hidden reports whether the user may not see an object. nil means that all objects are
	// visible. Exists reports whether an object exists.
	Hidden, Exists func(types.ManagedObjectReference) bool

	mu sync.Mutex
	// filters maps each collector to its filter. shown holds the objects that each collector has
	// reported.
	filters map[string]string
	shown   map[string]map[types.ManagedObjectReference]bool
}

var (
	managedObject = regexp.MustCompile(`<(?:obj|returnval|entities|entity)(?: [^>]*)? type="(\w+)"[^>]*>([^<]+)</`)
	thisObject    = regexp.MustCompile(`<(?:\w+:)?_this[^>]*>([^<]+)</`)
	entityAsked   = regexp.MustCompile(`<(?:\w+:)?entity [^>]*type="(\w+)"[^>]*>([^<]+)</`)
	versionAsked  = regexp.MustCompile(`<(?:\w+:)?version>([^<]*)</`)
	filterMade    = regexp.MustCompile(`<returnval type="PropertyFilter"[^>]*>([^<]+)</`)

	objectsBlock   = regexp.MustCompile(`(?s)<objects>.*?</objects>`)
	objectSetBlock = regexp.MustCompile(`(?s)<objectSet>.*?</objectSet>`)
	foundBlock     = regexp.MustCompile(`<returnval[^>]*type="\w+"[^>]*>[^<]+</returnval>`)
	privilegeBlock = regexp.MustCompile(`(?s)<returnval>.*?</returnval>`)
)

// Filter returns the answer to a call, without what the user may not see. send makes the call.
func (p *Permissions) Filter(req *http.Request, operation string,
	send func(*http.Request) (*http.Response, error)) (*http.Response, error) {
	if req.Body == nil || p.Hidden == nil && operation != "HasPrivilegeOnEntities" {
		return send(req)
	}
	asked, err := io.ReadAll(req.Body)
	_ = req.Body.Close()
	if err != nil {
		return nil, err
	}
	if operation == "HasPrivilegeOnEntities" {
		for _, ref := range refsOf(entityAsked, asked) {
			if !p.Exists(ref) {
				return Fault{Method: &types.ManagedObjectNotFound{Obj: ref}}.answer(req, nil, nil)
			}
		}
	}
	req = req.Clone(req.Context())
	req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(asked)), int64(len(asked))
	resp, err := send(req)
	if err != nil || resp.StatusCode != http.StatusOK || p.Hidden == nil {
		return resp, err
	}
	answer, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	answer = p.filter(operation, asked, answer)
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(answer)), int64(len(answer))
	resp.Header.Del("Content-Length")
	return resp, err
}

func (p *Permissions) filter(operation string, asked, answer []byte) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch operation {
	case "RetrievePropertiesEx", "ContinueRetrievePropertiesEx":
		return p.without(objectsBlock, answer)
	case "FindAllByUuid", "FindByInventoryPath":
		return p.without(foundBlock, answer)
	case "HasPrivilegeOnEntities":
		return privilegeBlock.ReplaceAllFunc(answer, func(block []byte) []byte {
			if p.hides(block) {
				block = bytes.ReplaceAll(block, []byte("<isGranted>true<"), []byte("<isGranted>false<"))
			}
			return block
		})
	case "CreateFilter":
		if m := filterMade.FindSubmatch(answer); m != nil {
			if p.filters == nil {
				p.filters, p.shown = map[string]string{}, map[string]map[types.ManagedObjectReference]bool{}
			}
			p.filters[this(asked)] = string(m[1])
			p.shown[this(asked)] = map[types.ManagedObjectReference]bool{}
		}
	case "WaitForUpdatesEx":
		return p.updates(this(asked), asked, answer)
	}
	return answer
}

// updates removes updates of hidden objects, and reports those that were shown before as having
// left.
func (p *Permissions) updates(collector string, asked, answer []byte) []byte {
	shown := p.shown[collector]
	if shown == nil {
		return answer
	}
	var left strings.Builder
	for ref := range shown {
		if p.Hidden(ref) {
			delete(shown, ref)
			left.WriteString(`<objectSet><kind>leave</kind><obj type="` + ref.Type + `">` + ref.Value + `</obj></objectSet>`)
		}
	}
	answer = p.without(objectSetBlock, answer)
	for _, block := range objectSetBlock.FindAll(answer, -1) {
		for _, ref := range refsOf(managedObject, block)[:1] {
			shown[ref] = !bytes.Contains(block, []byte("<kind>leave</kind>"))
		}
	}
	if left.Len() == 0 {
		return answer
	}
	if end := bytes.Index(answer, []byte("</filterSet>")); end >= 0 {
		return bytes.Join([][]byte{answer[:end], answer[end:]}, []byte(left.String()))
	}
	version := "1"
	if m := versionAsked.FindSubmatch(asked); m != nil {
		version = string(m[1])
	}
	set := `<returnval><version>` + version + `</version><filterSet><filter type="PropertyFilter">` + p.filters[collector] + `</filter>` +
		left.String() + `</filterSet></returnval></WaitForUpdatesExResponse>`
	at := regexp.MustCompile(`<WaitForUpdatesExResponse([^>]*?)/>|</WaitForUpdatesExResponse>`)
	return at.ReplaceAllFunc(answer, func(end []byte) []byte {
		if m := at.FindSubmatch(end); bytes.HasSuffix(end, []byte("/>")) {
			return []byte("<WaitForUpdatesExResponse" + string(m[1]) + ">" + set)
		}
		return []byte(set)
	})
}

// without removes the blocks about hidden objects.
func (p *Permissions) without(block *regexp.Regexp, answer []byte) []byte {
	return block.ReplaceAllFunc(answer, func(b []byte) []byte {
		if p.hides(b) {
			return nil
		}
		return b
	})
}

// hides reports whether the object that a block is about, which it names first, is hidden.
func (p *Permissions) hides(block []byte) bool {
	refs := refsOf(managedObject, block)
	return len(refs) > 0 && p.Hidden(refs[0])
}

func refsOf(pattern *regexp.Regexp, text []byte) (refs []types.ManagedObjectReference) {
	for _, m := range pattern.FindAllSubmatch(text, -1) {
		refs = append(refs, types.ManagedObjectReference{Type: string(m[1]), Value: string(m[2])})
	}
	return refs
}

func this(asked []byte) string {
	if m := thisObject.FindSubmatch(asked); m != nil {
		return string(m[1])
	}
	return ""
}
