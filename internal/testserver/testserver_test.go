package testserver_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/seed-5bb5eb37/idem/internal/testserver"
)

// program is the name of none that exists.
const program = "idem-no-such-server"

// machine makes a PATH that holds nothing but the given scripts. In them $bin is the folder and $program what
// is to be installed.
func machine(t *testing.T, scripts map[string]string) (bin string) {
	t.Helper()
	bin = t.TempDir()
	t.Setenv("PATH", bin)
	t.Setenv("TMPDIR", t.TempDir()) // where the lock is
	for name, script := range scripts {
		text := "#!/bin/sh\nPATH=/bin:/usr/bin:/usr/sbin\nbin='" + bin + "'\nprogram='" + program + "'\n" + script
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte(text), 0o700))
	}
	return bin
}

// put is what a package manager does in the end.
const put = `
echo "$@" >>"$bin/log"
printf '#!/bin/sh\n' >"$bin/$program"
chmod 755 "$bin/$program"
`

// logged returns the arguments of all calls.
func logged(t *testing.T, bin string) string {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(bin, "log"))
	require.NoError(t, err)
	return strings.TrimSpace(string(log))
}

func TestBinary(t *testing.T) {
	t.Run("is found on the PATH", func(t *testing.T) {
		bin := machine(t, map[string]string{program: "exit 0"})
		path, err := testserver.Binary(program, "deb", "formula")
		require.NoError(t, err)
		require.Equal(t, filepath.Join(bin, program), path)
	})
	t.Run("is found where the PATH does not lead", func(t *testing.T) {
		machine(t, nil)
		path, err := testserver.Binary("env", "deb", "formula")
		require.NoError(t, err)
		require.True(t, filepath.IsAbs(path))
	})
	t.Run("is installed once by any number of callers", func(t *testing.T) {
		bin := machine(t, map[string]string{"brew": "sleep 0.1" + put})
		var callers errgroup.Group
		for range 8 {
			callers.Go(func() error {
				_, err := testserver.Binary(program, "deb", "formula")
				return err
			})
		}
		require.NoError(t, callers.Wait())
		require.Equal(t, "install --quiet formula", logged(t, bin))
	})
	t.Run("that is installed under another name is an error", func(t *testing.T) {
		machine(t, map[string]string{"brew": "exit 0"})
		_, err := testserver.Binary(program, "deb", "formula")
		require.EqualError(t, err, "testserver: there is no "+program+" on this machine, not even after brew install formula")
	})
	t.Run("that cannot be installed is an error with the reason", func(t *testing.T) {
		machine(t, map[string]string{"brew": "echo no such formula; exit 1"})
		_, err := testserver.Binary(program, "deb", "formula")
		require.ErrorContains(t, err, "exit status 1: no such formula): brew install formula")
		require.NotContains(t, err.Error(), "\n", "one line")
	})
	t.Run("without a package manager is an error that says what to do", func(t *testing.T) {
		machine(t, nil)
		_, err := testserver.Binary(program, "deb", "formula")
		require.EqualError(t, err, "testserver: there is no "+program+" on this machine, and neither apt-get nor brew "+
			"to install it with: install what Debian calls deb and Homebrew formula")
	})
}

func TestBinaryFromDebian(t *testing.T) {
	bin := machine(t, map[string]string{
		"apt-get": `[ "$1" = update ] && exit 100` + put,
		"sudo":    "echo a password is required; exit 1",
	})
	// The script asks for apt-get by its name, but needs the rest of the system as well.
	t.Setenv("PATH", bin+":/bin:/usr/bin")
	_, err := os.Stat("/usr/bin/brew")
	require.ErrorIs(t, err, os.ErrNotExist, "this test does not reckon with a brew there")
	path, err := testserver.Binary(program, "deb", "formula")
	if os.Getuid() != 0 {
		require.EqualError(t, err, "testserver: there is no "+program+" on this machine, and only root can install it: "+
			"sudo apt-get install deb")
		return
	}
	require.NoError(t, err)
	require.Equal(t, filepath.Join(bin, program), path)
	require.Equal(t, "install -q -y --no-install-recommends -o DPkg::Lock::Timeout=300 deb", logged(t, bin))
}

// TestInstallingStartsNoService is about the file by which a package is told whether it may start its service.
func TestInstallingStartsNoService(t *testing.T) {
	install := func(t *testing.T, policy, aptGet string) (log string, err error) {
		t.Helper()
		bin := machine(t, map[string]string{"apt-get": `[ "$1" = update ] || ` + aptGet})
		cmd := exec.Command("/bin/sh", "install.sh", "deb", policy)
		cmd.Env = append(os.Environ(), "PATH="+bin+":/bin:/usr/bin", "POLICY="+policy)
		err = cmd.Run()
		return logged(t, bin), err
	}
	ask := `{ "$POLICY"; echo "policy says $?" >>"$bin/log"; }`
	t.Run("and leaves no trace", func(t *testing.T) {
		policy := filepath.Join(t.TempDir(), "policy-rc.d")
		log, err := install(t, policy, ask)
		require.NoError(t, err)
		require.Equal(t, "policy says 101", log)
		require.NoFileExists(t, policy)
	})
	t.Run("even when it fails", func(t *testing.T) {
		policy := filepath.Join(t.TempDir(), "policy-rc.d")
		log, err := install(t, policy, `{ `+ask+`; exit 100; }`)
		require.Error(t, err)
		require.Equal(t, "policy says 101", log)
		require.NoFileExists(t, policy)
	})
	t.Run("and keeps the machine's own policy", func(t *testing.T) {
		policy := filepath.Join(t.TempDir(), "policy-rc.d")
		require.NoError(t, os.WriteFile(policy, []byte("#!/bin/sh\nexit 104\n"), 0o700))
		log, err := install(t, policy, ask)
		require.NoError(t, err)
		require.Equal(t, "policy says 104", log)
		require.FileExists(t, policy)
	})
}
