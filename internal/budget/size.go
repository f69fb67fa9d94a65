// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"reflect"
	"time"
)

var timeType = reflect.TypeFor[time.Time]()

// SizeOf returns how many bytes of memory a value takes with all that it refers to, roughly: what
// it refers to twice counts twice. The value has no cycles. The zone of a time does not count: all
// times share it.
func SizeOf(value any) int64 {
	if value == nil {
		return 0
	}
	v := reflect.ValueOf(value)
	return int64(v.Type().Size()) + referred(v)
}

// referred returns the size of what a value refers to.
func referred(v reflect.Value) (size int64) {
	if v.Type() == timeType {
		return 0
	}
	switch v.Kind() {
	case reflect.String:
		return int64(v.Len())
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			size = int64(v.Elem().Type().Size()) + referred(v.Elem())
		}
	case reflect.Slice:
		size = int64(v.Len()) * int64(v.Type().Elem().Size())
		if v.Type().Elem().Kind() != reflect.Uint8 {
			for i := range v.Len() {
				size += referred(v.Index(i))
			}
		}
	case reflect.Array:
		for i := range v.Len() {
			size += referred(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			size += referred(v.Field(i))
		}
	case reflect.Map:
		for each := v.MapRange(); each.Next(); {
			size += int64(each.Key().Type().Size()+each.Value().Type().Size()) + referred(each.Key()) + referred(each.Value())
		}
	}
	return size
}
