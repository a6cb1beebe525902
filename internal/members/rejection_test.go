// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"testing"
	"time"
)

// Replicas may have rejected different clients. One that proved nothing must not hide what is wrong with the member's
// own agent.
func TestAProvedRejectionIsShownInsteadOfAnUnprovenOne(t *testing.T) {
	before, after := time.Unix(1, 0), time.Unix(2, 0)
	for name, tt := range map[string]struct {
		f, other *Rejection
		want     bool
	}{
		"there is no other":                      {&Rejection{At: before, Unproven: true}, nil, true},
		"the newer of two that were proved":      {&Rejection{At: after}, &Rejection{At: before}, true},
		"the older of two that were proved":      {&Rejection{At: before}, &Rejection{At: after}, false},
		"the newer of two unproven":              {&Rejection{At: after, Unproven: true}, &Rejection{At: before, Unproven: true}, true},
		"a proved one that is older":             {&Rejection{At: before}, &Rejection{At: after, Unproven: true}, true},
		"an unproven one that is newer":          {&Rejection{At: after, Unproven: true}, &Rejection{At: before}, false},
		"an unproven one at the time of another": {&Rejection{At: before, Unproven: true}, &Rejection{At: before}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tt.f.outweighs(tt.other); got != tt.want {
				t.Errorf("%+v is shown instead of %+v: %t, want %t", tt.f, tt.other, got, tt.want)
			}
		})
	}
}
