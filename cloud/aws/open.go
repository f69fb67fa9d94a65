// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"sync"
	"time"
)

// openCreates remembers in which zone a machine's create was left without a clear answer. A client token is good for one zone
// alone: to ask in another one, before this one has answered, could make a second instance.
type openCreates struct {
	mu    sync.Mutex
	zones map[string]openCreate // by token
}

type openCreate struct {
	zone string
	at   time.Time
}

// zone returns where the token's create is open, or "".
func (o *openCreates) zone(token string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.zones[token].zone
}

func (o *openCreates) note(token, zone string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.zones == nil {
		o.zones = map[string]openCreate{}
	}
	for other, create := range o.zones {
		if time.Since(create.at) > openTTL {
			delete(o.zones, other)
		}
	}
	o.zones[token] = openCreate{zone, time.Now()}
}

func (o *openCreates) close(token string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.zones, token)
}
