"""Share a file among eight peers, see who served how much, then kill one and bring it back."""

import sys

import trio

from fleet import Fleet


async def main(path: str) -> None:
    async with Fleet(peers=8, binding="tls") as fleet:
        artifact = await fleet[0].share(path, piece_size=1024)
        holdings = [await peer.fetch(artifact.root) for peer in fleet.peers[1:]]
        for peer, holding in zip(fleet.peers[1:], holdings, strict=True):
            await holding.wait()
            print(peer.peer_id.short, holding.state(), f"served {sum(holding.served.values()):,} bytes")

        await fleet.kill(3)  # no goodbye: its links just break
        peer = await fleet.restart(3)  # same identity, same storage
        again = await peer.fetch(artifact.root)
        await again.wait()
        print(peer.peer_id.short, f"is back with {again.verified} pieces, {again.received_bytes} bytes fetched again")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/share_a_file.py FILE")
    trio.run(main, sys.argv[1])
