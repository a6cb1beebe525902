// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"flag"
	"strconv"
)

// Parallel lets n tests of a package run at once, unless the command line says otherwise. It is for a TestMain of tests that mostly wait: by
// default as many run as there are processors.
func Parallel(n int) {
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = parallel.Value.Set(strconv.Itoa(n))
	}
}
