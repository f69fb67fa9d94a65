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

// createTags adds tags to instances, or replaces their values: to all that the call names, or none.
func (c *Cloud) createTags(form url.Values) (any, *failure) {
	if fail := checkTagKeys(form); fail != nil {
		return nil, fail
	}
	return c.changeTags(form, func(tags map[string]string, tag url.Values) { tags[tag.Get("Key")] = tag.Get("Value") })
}

// deleteTags removes tags from instances: by key, and by value if the call gives one.
func (c *Cloud) deleteTags(form url.Values) (any, *failure) {
	return c.changeTags(form, func(tags map[string]string, tag url.Values) {
		if !tag.Has("Value") || tags[tag.Get("Key")] == tag.Get("Value") {
			delete(tags, tag.Get("Key"))
		}
	})
}

func (c *Cloud) changeTags(form url.Values, change func(tags map[string]string, tag url.Values)) (any, *failure) {
	ids, fail := c.known(list(form, "ResourceId"))
	if fail != nil {
		return nil, fail
	}
	for _, id := range ids {
		i := c.instances[id]
		tags := maps.Clone(i.tags) // Books has given the old ones away
		if tags == nil {
			tags = map[string]string{}
		}
		for _, tag := range tagged(form, "Tag") {
			change(tags, tag)
		}
		i.tags = tags
	}
	return doneResponse{Done: true}, nil
}

// maxTags is how many tags a resource may have (EC2's user guide, "Tag restrictions").
const maxTags = 50

func checkTagKeys(form url.Values) *failure {
	tags := tagged(form, "Tag")
	for _, tag := range tags {
		if strings.HasPrefix(tag.Get("Key"), "aws:") {
			return refuse("InvalidParameterValue", "Tag keys starting with 'aws:' are reserved for internal use")
		}
	}
	if len(tags) > maxTags {
		return refuse("TagLimitExceeded", "The maximum number of Tags for a resource has been reached.")
	}
	return nil
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
	kinds := map[string]string{"vol": "volume", "eni": "network-interface", "eipalloc": "elastic-ip", "sg": "security-group"}
	for _, l := range slices.AppendSeq(slices.Clone(c.buried), maps.Values(c.leftovers)) {
		if prefix, _, _ := strings.Cut(l.id, "-"); time.Since(l.made) >= c.options.Lag {
			add(l.id, kinds[prefix], l.tags)
		}
	}
	for _, group := range c.allGroups(false) {
		add(group.ID, "security-group", group.tags)
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
