// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Location returns the time zone of a window. The default is UTC. Like the schema, Location rejects some names that
// time.LoadLocation accepts: the meaning of names such as "Local" depends on the machine, and zones in the right/
// directory count leap seconds.
func (w *TimeWindow) Location() (*time.Location, error) {
	directory, _, _ := strings.Cut(w.TimeZone, "/")
	if slices.Contains([]string{"local", "localtime", "posixrules", "factory", "posix", "right"}, strings.ToLower(directory)) {
		return nil, fmt.Errorf("%q is not in the IANA time zone database: use a name such as Europe/Berlin or UTC", w.TimeZone)
	}
	zone, err := time.LoadLocation(w.TimeZone)
	if err != nil {
		return nil, fmt.Errorf("unknown time zone %q: use a name such as Europe/Berlin or UTC", w.TimeZone)
	}
	return zone, nil
}
