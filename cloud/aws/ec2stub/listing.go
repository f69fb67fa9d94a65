// SPDX-License-Identifier: Apache-2.0

package ec2stub

import (
	"iter"
	"maps"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
)

// maxFilterValues is the maximum number of values of a filter.
const maxFilterValues = 200

// page applies the filters and returns the requested page. valuesOf returns an item's values for a
// filter name.
func page[T any](c *Cloud, form url.Values, all []T, valuesOf func(T, string) []string) (found []T, next string, fail *failure) {
	for _, filter := range tagged(form, "Filter") {
		wanted := list(filter, "Value")
		if len(wanted) > maxFilterValues {
			return nil, "", refuse("FilterLimitExceeded", "The maximum number of filter values specified on a single call is %d", maxFilterValues)
		}
		all = slices.DeleteFunc(all, func(item T) bool { return !matches(wanted, valuesOf(item, filter.Get("Name"))) })
	}
	size := c.options.PageSize
	if size == 0 {
		size = 1000
	}
	if asked := form.Get("MaxResults"); asked != "" {
		n, err := strconv.Atoi(asked)
		if err != nil || n < 5 || n > 1000 {
			return nil, "", refuse("InvalidParameterValue",
				"Value ( %s ) for parameter maxResults is invalid. Expecting a value between 5 and 1000.", asked)
		}
		size = min(size, n)
	}
	from := 0
	if token := form.Get("NextToken"); token != "" {
		_, at, _ := strings.Cut(token, "-from-")
		n, err := strconv.Atoi(at)
		if err != nil || n > len(all) {
			return nil, "", refuse("InvalidNextToken", "The NextToken is not valid")
		}
		from = n
	}
	if c.short && from < len(all) {
		size = min(size, (len(all)-from)/2)
	}
	if from+size < len(all) {
		c.pages++ // makes each token unique
		next = itoa(c.pages) + "-from-" + itoa(from+size)
	}
	return all[from:min(from+size, len(all))], next, nil
}

// matches reports whether one of the values matches one of the wanted patterns, with the wildcards
// "*" and "?".
func matches(wanted, values []string) bool {
	return slices.ContainsFunc(wanted, func(pattern string) bool {
		return slices.ContainsFunc(values, func(value string) bool {
			// In path.Match "*" stops at a slash, in EC2 it does not.
			ok, err := path.Match(strings.ReplaceAll(pattern, "/", "\x00"), strings.ReplaceAll(value, "/", "\x00"))
			return ok && err == nil
		})
	})
}

// tagValues returns the values for the filters "tag-key" and "tag:<key>".
func tagValues(tags map[string]string, name string) []string {
	if name == "tag-key" {
		return slices.Collect(keys(tags))
	}
	key, ok := strings.CutPrefix(name, "tag:")
	if value, has := tags[key]; ok && has {
		return []string{value}
	}
	return nil
}

func keys[V any](m map[string]V) iter.Seq[string] { return maps.Keys(m) }
