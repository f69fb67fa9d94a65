// SPDX-License-Identifier: Apache-2.0

package ec2stub

import (
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"
)

type tagsResponse struct {
	Tags      []describedTag `xml:"tagSet>item"`
	NextToken string         `xml:"nextToken,omitempty"`
}

type describedTag struct {
	ID   string `xml:"resourceId"`
	Kind string `xml:"resourceType"`
	tagItem
}

// describeTags lists all tags, including those of deleted resources, as EC2 does for a while.
func (c *Cloud) describeTags(form url.Values) (any, *failure) {
	var all []describedTag
	add := func(id, kind string, tags map[string]string) {
		for _, tag := range toTags(tags) {
			all = append(all, describedTag{id, kind, tag})
		}
	}
	for id, i := range c.instances {
		if c.shows(i) {
			add(id, "instance", i.tags)
		}
	}
	kinds := map[string]string{"vol": "volume", "eni": "network-interface", "eipalloc": "elastic-ip"}
	for _, l := range slices.AppendSeq(slices.Clone(c.buried), maps.Values(c.leftovers)) {
		if prefix, _, _ := strings.Cut(l.id, "-"); time.Since(l.made) >= c.options.Lag {
			add(l.id, kinds[prefix], l.tags)
		}
	}
	slices.SortFunc(all, func(a, b describedTag) int { return strings.Compare(a.ID+a.Key, b.ID+b.Key) })
	found, next, fail := page(c, form, all, func(t describedTag, name string) []string {
		switch name {
		case "resource-id":
			return []string{t.ID}
		case "resource-type":
			return []string{t.Kind}
		case "key":
			return []string{t.Key}
		case "value":
			return []string{t.Value}
		}
		return tagValues(map[string]string{t.Key: t.Value}, name)
	})
	return tagsResponse{Tags: found, NextToken: next}, fail
}
