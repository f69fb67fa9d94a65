// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
	"github.com/drover-io/drover/cloud/tagging"
)

// An instance that others made becomes Drover's by two labels: the driver finds instances by them,
// and never by their names. Its disks need none, because Compute Engine deletes those with it that
// were made for it. Others recognize their instances by labels or by network tags; both count as
// tags here. Labels and network tags are written as a whole, with the fingerprint of what was read:
// so what another writes meanwhile is not lost.

// conditionNotMet refuses a write because the fingerprint is not that of today.
const conditionNotMet = "conditionNotMet"

// Tagged implements tagging.Tagger. An instance's name is its tag "Name". Its ID has its name, as a
// Node's provider ID has it.
func (d *driver) Tagged(ctx context.Context, keys []string) (found []tagging.Instance, err error) {
	if len(keys) == 0 {
		return nil, nil
	}
	filter := ""
	if slices.Contains(keys, cloud.TagOwnership) || slices.Contains(keys, cloud.TagToken) {
		filter = ownFilter
	}
	all, err := listAll(ctx, d, "ListInstances", allInstances, filter, func(s scope) []instance { return s.Instances })
	for i := range all {
		one := &all[i]
		tags := maps.Clone(one.Labels)
		if tags == nil {
			tags = map[string]string{}
		}
		if one.Tags != nil {
			for _, tag := range one.Tags.Items {
				tags[tag] = ""
			}
		}
		tags["Name"] = one.Name
		if slices.ContainsFunc(keys, func(key string) bool { _, has := tags[key]; return !has }) {
			continue
		}
		t := tagging.Instance{Resource: d.resource(one), Type: lastPart(one.MachineType), Tags: tags}
		t.ID = t.FailureDomain + "/" + one.Name
		found = append(found, t)
	}
	return found, err
}

// Tag implements tagging.Tagger. A label can't hold cloud.TagMachine.
func (d *driver) Tag(ctx context.Context, id string, tags map[string]string, _ []string) error {
	zone, name, _ := strings.Cut(id, "/")
	found, err := d.get(ctx, zone, name)
	switch {
	case err != nil:
		return err
	case found == nil:
		return cloud.Errorf(cloud.NotFound, "there is no instance %s in %s", name, zone)
	}
	return d.setLabels(ctx, zone, found, func(labels map[string]string) {
		labels[cloud.TagOwnership], labels[cloud.TagToken] = tags[cloud.TagOwnership], tags[cloud.TagToken]
	})
}

// Untag implements tagging.Tagger.
func (d *driver) Untag(ctx context.Context, ids, keys []string) error {
	errs := driverkit.InParallel(deletesAtOnce, ids, func(id string) error { return d.untag(ctx, id, keys) })
	var queued *cloud.Queued
	for _, err := range errs {
		if err != nil && !errors.As(err, &queued) {
			return err
		}
	}
	if queued != nil {
		return queued
	}
	return nil
}

func (d *driver) untag(ctx context.Context, id string, keys []string) error {
	zone, name, _ := strings.Cut(id, "/")
	found, err := d.get(ctx, zone, name)
	if err != nil || found == nil {
		return err
	}
	queued := d.setLabels(ctx, zone, found, func(labels map[string]string) {
		maps.DeleteFunc(labels, func(key, _ string) bool { return slices.Contains(keys, key) })
	})
	if queued != nil || found.Tags == nil {
		return queued
	}
	left := slices.DeleteFunc(slices.Clone(found.Tags.Items), func(tag string) bool { return slices.Contains(keys, tag) })
	if len(left) == len(found.Tags.Items) {
		return nil
	}
	if left == nil {
		left = []string{}
	}
	return d.setOn(ctx, "SetTags", zone, found, networkTags{Items: left, Fingerprint: found.Tags.Fingerprint})
}

// setLabels writes the labels of an instance if edit changes them.
func (d *driver) setLabels(ctx context.Context, zone string, of *instance, edit func(map[string]string)) error {
	labels := map[string]string{}
	maps.Copy(labels, of.Labels)
	if edit(labels); maps.Equal(labels, of.Labels) {
		return nil
	}
	return d.setOn(ctx, "SetLabels", zone, of, labelsRequest{Labels: labels, Fingerprint: of.LabelFingerprint})
}

// setOn begins a change of an instance. It returns *cloud.Queued until a later read shows that it
// was made.
func (d *driver) setOn(ctx context.Context, op, zone string, of *instance, in any) error {
	action := map[string]string{"SetLabels": "setLabels", "SetTags": "setTags"}[op]
	_, err := d.change(ctx, request{
		op: op, class: cloud.ClassCreate, method: http.MethodPost, path: "zones/" + zone + "/instances/" + url.PathEscape(of.Name) + "/" + action,
		in: in,
	})
	if err == nil || driverkit.RefusedAs(err, conditionNotMet) {
		return &cloud.Queued{After: d.poll}
	}
	return err
}
