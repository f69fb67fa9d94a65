// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

const (
	// metadataService is Nova's metadata service. Guests reach it through Neutron's agent, which
	// shares a secret with it ("inside" in hack/openstack).
	metadataService = "http://127.0.0.1:25011/openstack/latest/"
	metadataSecret  = "metadata"
	// lookEvery is how often Power checks which servers must be switched on or off.
	lookEvery = 2 * time.Second
)

// Guest is what a server knows about itself, from Nova's metadata service.
type Guest struct {
	ID, Hostname, Zone, IP string
	UserData               []byte
}

// Power calls on for each of Drover's servers that is ACTIVE in Nova, once it has read the server's
// metadata, and calls off when the server is no longer ACTIVE. It runs until ctx ends.
func (c *Cloud) Power(ctx context.Context, on func(Guest) (off func())) {
	c.looking.Go(func() {
		ticker := time.NewTicker(lookEvery)
		defer ticker.Stop()
		running := map[string]func(){}
		for {
			if now, err := c.look(ctx); err == nil { // after an error it is unknown which servers are gone
				c.switchOff(now.servers, running)
				c.switchOn(ctx, now.servers, running, on)
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
				for _, off := range running {
					off()
				}
				return
			}
		}
	})
}

func (c *Cloud) switchOff(now map[string]server, running map[string]func()) {
	for id, off := range running {
		if now[id].Status != "ACTIVE" {
			off()
			delete(running, id)
		}
	}
}

// switchOn boots all new servers at once, because each needs its own requests. It retries failed
// ones at the next check.
func (c *Cloud) switchOn(ctx context.Context, now map[string]server, running map[string]func(), on func(Guest) (off func())) {
	var fresh []server
	for id, s := range now {
		if s.Status == "ACTIVE" && running[id] == nil && s.ip() != "" {
			fresh = append(fresh, s)
		}
	}
	guests := make([]*Guest, len(fresh))
	var wg sync.WaitGroup
	for i := range fresh {
		wg.Go(func() {
			if guest, err := c.boot(ctx, &fresh[i]); err == nil {
				guests[i] = &guest
			}
		})
	}
	wg.Wait()
	for i, guest := range guests {
		if guest != nil {
			running[fresh[i].ID] = on(*guest)
		}
	}
}

// boot reads the same data as cloud-init's data source for OpenStack.
func (c *Cloud) boot(ctx context.Context, s *server) (Guest, error) {
	text, err := c.Metadata(ctx, s.ID, s.ip(), "meta_data.json")
	if err != nil {
		return Guest{}, err
	}
	var meta struct {
		UUID, Hostname string
		Zone           string `json:"availability_zone"`
	}
	if err := json.Unmarshal(text, &meta); err != nil {
		return Guest{}, fmt.Errorf("read the metadata of %s: %w", s.ID, err)
	}
	data, err := c.Metadata(ctx, s.ID, s.ip(), "user_data")
	return Guest{ID: meta.UUID, Hostname: meta.Hostname, Zone: meta.Zone, IP: s.ip(), UserData: data}, err
}

// Metadata requests a file from the metadata service, as Neutron's agent does for a guest.
func (c *Cloud) Metadata(ctx context.Context, id, ip, path string) (content []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, metadataService+path, nil)
	if err != nil {
		return nil, err
	}
	sign := hmac.New(sha256.New, []byte(metadataSecret))
	_, _ = sign.Write([]byte(id))
	for key, value := range map[string]string{
		"X-Instance-ID": id, "X-Instance-ID-Signature": hex.EncodeToString(sign.Sum(nil)), "X-Tenant-ID": c.Project, "X-Forwarded-For": ip,
	} {
		req.Header.Set(key, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	content, err = io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("the metadata service answers %s about %s of %s", resp.Status, path, id)
	}
	return content, err
}
