# To be sourced. Where ccache is installed: objects go to the project's cache folder, and a checkout's own path does not
# count, so that the next clone finds them.
export CCACHE_DIR=${CCACHE_DIR:-${RDMAKIT_CACHE:-$HOME/.cache/rdmakit}/ccache}
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD}
export CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR:-true}
# A unit of several files has a time of its own in each build folder.
export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-include_file_mtime,include_file_ctime}
