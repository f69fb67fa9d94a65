// SPDX-License-Identifier: Apache-2.0

package toycloud

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	toyKey      = "marked-toy-key"
	toyPageSize = 40
	buildTime   = 20 * time.Millisecond
	deleteTime  = 20 * time.Millisecond
)

// toy is the toy cloud itself: it is what a real cloud's endpoint would be.
type toy struct {
	handler http.Handler
	mu      sync.Mutex
	servers map[string]*toyServer
	volumes map[string]volume
	made    int                                    // servers
	full    bool                                   // servers fail instead of running
	blind   bool                                   // the key may list nothing
	refuse  func() (status int, retryAfter string) // of creates; nil: none
}

type toyServer struct {
	server
	fails   bool
	deleted time.Time
}

func startToy(t *testing.T) (*toy, string) {
	t.Helper()
	c := &toy{servers: map[string]*toyServer{}, volumes: map[string]volume{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /catalog", c.catalog)
	mux.HandleFunc("POST /servers", c.create)
	mux.HandleFunc("GET /servers/{name}", c.get)
	mux.HandleFunc("GET /servers", c.list)
	mux.HandleFunc("GET /volumes", c.list)
	mux.HandleFunc("DELETE /servers/{id}", c.delete)
	mux.HandleFunc("DELETE /volumes/{name}", c.deleteVolume)
	c.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if r.Header.Get("Authorization") != "Bearer "+toyKey || c.blind && r.URL.RawQuery != "" {
			respond(w, 401, errorBody{"the key is invalid"})
			return
		}
		c.forget()
		mux.ServeHTTP(w, r)
	})
	endpoint := httptest.NewServer(c.handler)
	t.Cleanup(endpoint.Close)
	return c, endpoint.URL
}

func respond(w http.ResponseWriter, status int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer)
}

func offered() catalog {
	return catalog{
		Account: "customer-1",
		Zones:   []string{"toy-b", "toy-a"},
		Sizes:   map[string][2]int{"small": {2, 4}},
		Images:  map[string]string{"node-image": "amd64"},
	}
}

func (c *toy) catalog(w http.ResponseWriter, _ *http.Request) { respond(w, 200, offered()) }

func (c *toy) create(w http.ResponseWriter, r *http.Request) {
	var s server
	if err := json.NewDecoder(r.Body).Decode(&s); err != nil {
		respond(w, 422, errorBody{"not JSON"})
		return
	}
	all := offered()
	_, size := all.Sizes[s.Size]
	s.Zone = cmp.Or(s.Zone, "toy-a")
	switch {
	case c.servers[s.Name] != nil:
		respond(w, 409, errorBody{"the name is in use"})
	case !size || all.Images[s.Image] == "" || !slices.Contains(all.Zones, s.Zone):
		respond(w, 422, errorBody{"no such size, image or zone"})
	case len(s.UserData) > 32<<10:
		respond(w, 422, errorBody{"the user data is too large"})
	case c.refuse != nil:
		status, after := c.refuse()
		w.Header().Set("Retry-After", after)
		respond(w, status, errorBody{"injected"})
	default:
		c.made++
		s.ID, s.Created, s.IP = fmt.Sprintf("server-%d", c.made), time.Now(), fmt.Sprintf("10.0.%d.%d", c.made/250, c.made%250+1)
		c.servers[s.Name] = &toyServer{server: s, fails: c.full}
		c.volumes[s.ID+"-root"] = volume{Name: s.ID + "-root", Labels: s.Labels}
		respond(w, 201, c.servers[s.Name].now())
	}
}

// forget forgets the servers that are deleted by now. Their names are free again.
func (c *toy) forget() {
	maps.DeleteFunc(c.servers, func(_ string, s *toyServer) bool { return !s.deleted.IsZero() && time.Since(s.deleted) >= deleteTime })
}

// byID returns the server with the ID, or nil.
func (c *toy) byID(id string) *toyServer {
	for _, s := range c.servers {
		if s.ID == id {
			return s
		}
	}
	return nil
}

// now is the server as time has it.
func (s *toyServer) now() server {
	out := s.server
	out.UserData = nil
	switch {
	case s.deleted.IsZero() && time.Since(s.Created) < buildTime:
		out.State = "building"
	case s.deleted.IsZero() && s.fails:
		out.State = "failed"
	case s.deleted.IsZero():
		out.State = "active"
	default:
		out.State = "deleting"
	}
	return out
}

func (c *toy) get(w http.ResponseWriter, r *http.Request) {
	if s := c.servers[r.PathValue("name")]; s != nil {
		respond(w, 200, s.now())
		return
	}
	respond(w, 404, errorBody{"no such server"})
}

// list answers a page of what carries a label, with one of the values if there are any. A page
// begins after a name: by its number, it would repeat servers or leave them out where others come
// and go meanwhile.
func (c *toy) list(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	matches := func(labels map[string]string) bool {
		value, ok := labels[query.Get("label")]
		return ok && (len(query["value"]) == 0 || slices.Contains(query["value"], value))
	}
	var p page
	if r.URL.Path == "/servers" {
		for _, name := range slices.Sorted(maps.Keys(c.servers)) {
			if s := c.servers[name].now(); name > query.Get("after") && matches(s.Labels) {
				p.Servers = append(p.Servers, s)
			}
		}
		p.Servers, p.Next = cutPage(p.Servers, func(s server) string { return s.Name })
	} else {
		for _, name := range slices.Sorted(maps.Keys(c.volumes)) {
			if v := c.volumes[name]; name > query.Get("after") && matches(v.Labels) {
				p.Volumes = append(p.Volumes, v)
			}
		}
		p.Volumes, p.Next = cutPage(p.Volumes, func(v volume) string { return v.Name })
	}
	respond(w, 200, p)
}

// cutPage returns the first page, and the name after which the next begins.
func cutPage[T any](all []T, name func(T) string) ([]T, string) {
	if len(all) <= toyPageSize {
		return all, ""
	}
	return all[:toyPageSize], name(all[toyPageSize-1])
}

func (c *toy) delete(w http.ResponseWriter, r *http.Request) {
	s := c.byID(r.PathValue("id"))
	switch {
	case s == nil:
		respond(w, 404, errorBody{"no such server"})
		return
	case s.deleted.IsZero():
		s.deleted = time.Now()
	}
	respond(w, 202, struct{}{})
}

func (c *toy) deleteVolume(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	if _, ok := c.volumes[name]; !ok {
		respond(w, 404, errorBody{"no such volume"})
		return
	}
	if c.byID(strings.TrimSuffix(name, "-root")) != nil {
		respond(w, 409, errorBody{"the volume is attached"})
		return
	}
	delete(c.volumes, name)
	respond(w, 200, struct{}{})
}

// left lists all that is not deleted and carries the label.
func (c *toy) left(key, value string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget()
	var names []string
	for name, s := range c.servers {
		if s.Labels[key] == value {
			names = append(names, name)
		}
	}
	for name, v := range c.volumes {
		if v.Labels[key] == value {
			names = append(names, name)
		}
	}
	return names
}
