// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Location returns the time zone of a window. The default is UTC. Like the schema, Location rejects names that
// time.LoadLocation accepts, but that are not in the IANA time zone database. The meaning of names such as "Local"
// depends on the machine, and zones in the right/ directory count leap seconds.
func (w *TimeWindow) Location() (*time.Location, error) {
	directory, _, _ := strings.Cut(w.TimeZone, "/")
	if slices.Contains([]string{"local", "localtime", "posixrules", "factory", "posix", "right"}, strings.ToLower(directory)) {
		return nil, fmt.Errorf("%q is no zone of the IANA time zone database: write one such as Europe/Berlin, or UTC", w.TimeZone)
	}
	zone, err := time.LoadLocation(w.TimeZone)
	if err != nil {
		return nil, fmt.Errorf("time zone %q is not known here: write one such as Europe/Berlin, or UTC", w.TimeZone)
	}
	return zone, nil
}
