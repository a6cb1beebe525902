// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"testing"
	"time"
)

// Replicas may have rejected different clients. A rejection without proof must not hide a problem with the member's own
// agent.
func TestProvenRejectionIsShownBeforeUnproven(t *testing.T) {
	before, after := time.Unix(1, 0), time.Unix(2, 0)
	for name, tt := range map[string]struct {
		f, other *Rejection
		want     bool
	}{
		"there is no other rejection":  {&Rejection{At: before, Unproven: true}, nil, true},
		"the newer of two proven ones": {&Rejection{At: after}, &Rejection{At: before}, true},
		"the older of two proven ones": {&Rejection{At: before}, &Rejection{At: after}, false},
		"the newer of two unproven ones": {
			&Rejection{At: after, Unproven: true}, &Rejection{At: before, Unproven: true}, true,
		},
		"an older proven one":              {&Rejection{At: before}, &Rejection{At: after, Unproven: true}, true},
		"a newer unproven one":             {&Rejection{At: after, Unproven: true}, &Rejection{At: before}, false},
		"an unproven one of the same time": {&Rejection{At: before, Unproven: true}, &Rejection{At: before}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tt.f.outweighs(tt.other); got != tt.want {
				t.Errorf("%+v is shown instead of %+v: %t, want %t", tt.f, tt.other, got, tt.want)
			}
		})
	}
}
