// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import "testing"

func TestTheCodeOfALoginIsRead(t *testing.T) {
	const begun = "On any computer, open\n\n  https://10.90.0.1:4000/v1/auth/device\n\nand enter the code\n\n"
	for said, want := range map[string][2]string{
		begun:                   {},
		begun + "  BCDF-GHJK\n": {"https://10.90.0.1:4000/v1/auth/device", "BCDF-GHJK"},
	} {
		if page, code := shownCode(said); page != want[0] || code != want[1] {
			t.Errorf("%q shows the page %q and the code %q, want %q", said, page, code, want)
		}
	}
}
